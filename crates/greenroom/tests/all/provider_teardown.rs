//! `greenroom pools remove` and `greenroom down` for slots that are jobs of Nomad or applications of Coolify.
//! Afterwards nothing is left there. If the provider does not delete a slot, the row is kept.

use std::path::Path;

use rstest::rstest;
use serde_json::json;

use crate::pool_removal::{other_pool, pools, start_again};
use crate::support::{
    Backend, COOLIFY_TOKEN, CoolifyFake, CoolifyFault, CoolifyOperation, CoolifySettings, Database, NomadFake,
    NomadFault, NomadOperation, Process, ServerFixture, meet_link,
};

/// More requests than one command sends.
const MANY: usize = 1_000;

/// The provider of the slots.
enum Elsewhere {
    Nomad(NomadFake),
    Coolify(CoolifyFake),
}

#[derive(Clone, Copy)]
enum Kind {
    Nomad,
    Coolify,
}

impl Elsewhere {
    async fn start(kind: Kind) -> Self {
        match kind {
            Kind::Nomad => Elsewhere::Nomad(NomadFake::start().await),
            Kind::Coolify => Elsewhere::Coolify(CoolifyFake::start(CoolifySettings::default()).await),
        }
    }

    /// A pool that keeps two slots ready.
    fn pool(&self) -> String {
        let (kind, section) = match self {
            Elsewhere::Nomad(fake) => {
                let section = format!("address = \"{}\"\ntoken = \"{}\"\nimage = \"bot:1\"", fake.url(), fake.token());
                ("nomad", section)
            }
            Elsewhere::Coolify(fake) => {
                let section = format!(
                    "api_url = \"{}/api/v1\"\napi_token = \"{COOLIFY_TOKEN}\"\nproject_uuid = \"{}\"\n\
                     server_uuid = \"{}\"\nenvironment_name = \"production\"\nimage = \"team/bot:1\"",
                    fake.url,
                    CoolifyFake::PROJECT,
                    CoolifyFake::SERVER
                );
                ("coolify", section)
            }
        };
        format!(
            "[[pool]]\nname = \"meet\"\nplatform = \"google_meet\"\nprovider = \"{kind}\"\nmax_slots = 3\nmin_idle = 2\n\
             [pool.{kind}]\n{section}\n"
        )
    }

    fn secret(&self) -> (&'static str, String) {
        match self {
            Elsewhere::Nomad(fake) => ("NOMAD_TOKEN", fake.token().to_owned()),
            Elsewhere::Coolify(_) => ("COOLIFY_API_TOKEN", COOLIFY_TOKEN.to_owned()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Elsewhere::Nomad(_) => "nomad",
            Elsewhere::Coolify(_) => "coolify",
        }
    }

    /// How many slots the provider has.
    fn slots(&self) -> usize {
        match self {
            Elsewhere::Nomad(fake) => fake.jobs().len(),
            Elsewhere::Coolify(fake) => fake.applications().len(),
        }
    }

    fn break_deletions(&self) {
        match self {
            Elsewhere::Nomad(fake) => fake.break_next(NomadOperation::Deregister, NomadFault::NoLeader, MANY),
            Elsewhere::Coolify(fake) => fake.break_next(CoolifyOperation::Delete, CoolifyFault::Fail, MANY),
        }
    }

    fn mend(&self) {
        match self {
            Elsewhere::Nomad(fake) => fake.mend(),
            Elsewhere::Coolify(fake) => fake.mend(),
        }
    }

    fn expect_no_fault(&self) {
        let violations = match self {
            Elsewhere::Nomad(fake) => fake.violations(),
            Elsewhere::Coolify(fake) => fake.violations(),
        };
        assert_eq!(violations, Vec::<String>::new());
    }

    /// A server with the pool, two idle slots and one with a bot. Nothing in the slots sends callbacks.
    async fn fixture(&self) -> (ServerFixture, String) {
        let fixture = ServerFixture::open(Backend::Sqlite, &(self.pool() + &other_pool())).await;
        fixture.until_slots(2, 0).await;
        let bot = fixture.user.ask(json!({"meeting_url": meet_link(1)})).await;
        fixture.until_slots(2, 1).await;
        assert_eq!(self.slots(), 3);
        (fixture, bot["id"].as_str().unwrap().to_owned())
    }
}

async fn greenroom(
    folder: &Path,
    database: &Database,
    arguments: &[&str],
    secret: Option<&(&str, String)>,
) -> (bool, String) {
    let mut command = Process::command();
    command.args(arguments).args(["--database", &database.url]).current_dir(folder);
    command.envs(secret.map(|(name, value)| (*name, value)));
    let output = command.output().await.unwrap();
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), said)
}

async fn stored_slots(database: &Database) -> usize {
    database.reader().await.pairs("SELECT name, status FROM slots").await.len()
}

#[rstest]
#[case::nomad(Kind::Nomad)]
#[case::coolify(Kind::Coolify)]
#[tokio::test]
async fn a_pool_that_left_the_configuration_is_removed_once_the_provider_deletes_its_slots(#[case] kind: Kind) {
    let elsewhere = Elsewhere::start(kind).await;
    let (ServerFixture { server, database, user, .. }, bot) = elsewhere.fixture().await;
    let (server, _) = start_again(server, &database, &other_pool()).await;
    let (folder, secret) = (database.folder.path(), elsewhere.secret());
    let remove = ["pools", "remove", "meet"];
    let forced = ["pools", "remove", "meet", "--yes", "--force"];

    let (well, said) = greenroom(folder, &database, &forced, None).await;
    assert!(!well && said.contains(&format!("set {} in the environment of this command", secret.0)), "{said}");
    let (well, said) = greenroom(folder, &database, &remove, Some(&secret)).await;
    let counted = format!(
        "The pool meet ({}) has 3 slots and 1 bot; the command waits until all bots have ended.",
        elsewhere.name()
    );
    assert!(!well && said.contains(&counted) && said.contains("use --yes"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (3, 3), "nothing is removed without --yes");

    elsewhere.break_deletions();
    let (well, said) = greenroom(folder, &database, &forced, Some(&secret)).await;
    assert!(!well && said.contains("3 could not be removed; run the command again"), "{said}");
    assert!(!said.contains("another operation uses the slot"), "{said}");
    assert_eq!(
        (elsewhere.slots(), stored_slots(&database).await),
        (3, 3),
        "the remaining slots are still in the store"
    );
    assert_eq!(pools(&server).await, ["other", "meet"]);

    elsewhere.mend();
    let (well, said) = greenroom(folder, &database, &forced, Some(&secret)).await;
    assert!(well && said.contains("Removed 3 slots and the pool meet"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (0, 0));
    assert_eq!(pools(&server).await, ["other"]);
    let bot = user.on(&server.url).show_bot(&bot).await;
    assert_eq!((&bot["status"], &bot["reason"]), (&json!("completed"), &json!("stopped")), "{bot}");
    elsewhere.expect_no_fault();
}

#[rstest]
#[case::nomad(Kind::Nomad)]
#[case::coolify(Kind::Coolify)]
#[tokio::test]
async fn down_leaves_nothing_at_the_provider_and_keeps_slots_that_were_not_deleted(#[case] kind: Kind) {
    let elsewhere = Elsewhere::start(kind).await;
    let (ServerFixture { server, database, user, .. }, bot) = elsewhere.fixture().await;
    server.terminate().await;
    assert!(server.wait().await);
    let folder = database.folder.path();

    let (well, said) = greenroom(folder, &database, &["down"], None).await;
    assert!(!well && said.contains("This command ends 1 bot and removes 3 slots of 1 pool:"), "{said}");
    assert!(said.contains("meet                 3") && said.contains("use --yes"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (3, 3), "nothing is removed without --yes");

    elsewhere.break_deletions();
    let (well, said) = greenroom(folder, &database, &["down", "--yes"], None).await;
    assert!(!well && said.contains("3 could not be removed; run the command again"), "{said}");
    assert_eq!(
        (elsewhere.slots(), stored_slots(&database).await),
        (3, 3),
        "the remaining slots are still in the store"
    );

    elsewhere.mend();
    let (well, said) = greenroom(folder, &database, &["down", "--yes"], None).await;
    assert!(well && said.contains("Ended 0 bots and removed 3 slots."), "{said}");
    assert!(said.contains("The providers have no more slots of this installation."), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (0, 0));
    elsewhere.expect_no_fault();

    let server = Process::start_with(&database, &[]).await;
    let bot = user.on(&server.url).show_bot(&bot).await;
    assert_eq!((&bot["status"], &bot["reason"]), (&json!("completed"), &json!("stopped")), "{bot}");
}

#[tokio::test]
async fn pools_remove_names_an_unavailable_provider() {
    let elsewhere = Elsewhere::start(Kind::Nomad).await;
    let (ServerFixture { server, database, .. }, _) = elsewhere.fixture().await;
    let (_server, _) = start_again(server, &database, &other_pool()).await;
    let secret = elsewhere.secret();
    drop(elsewhere);
    let arguments = ["pools", "remove", "meet", "--yes", "--force"];
    let (well, said) = greenroom(database.folder.path(), &database, &arguments, Some(&secret)).await;
    assert!(!well && said.contains("the provider is unavailable: "), "{said}");
    assert_eq!(stored_slots(&database).await, 3);
}

#[tokio::test]
async fn down_retries_a_provider_that_is_unavailable_for_a_moment() {
    let fake = CoolifyFake::start(CoolifySettings::default()).await;
    // A proxy answers instead of Coolify, once for each slot.
    fake.break_next(CoolifyOperation::Delete, CoolifyFault::Page(502), 3);
    let elsewhere = Elsewhere::Coolify(fake);
    let (ServerFixture { server, database, .. }, _) = elsewhere.fixture().await;
    server.terminate().await;
    assert!(server.wait().await);
    let (well, said) = greenroom(database.folder.path(), &database, &["down", "--yes"], None).await;
    assert!(well && said.contains("removed 3 slots"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (0, 0));
}
