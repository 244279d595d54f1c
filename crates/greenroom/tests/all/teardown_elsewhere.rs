//! `greenroom pools remove` and `greenroom down` where slots are jobs of Nomad or applications of Coolify: afterwards
//! nothing is left there, and what the provider does not delete is kept.

use std::path::Path;

use rstest::rstest;
use serde_json::json;

use crate::pool_removal::{other_pool, pools, start_again};
use crate::support::{
    Backend, COOLIFY_TOKEN, CoolifyFake, CoolifyFault, CoolifyOperation, CoolifySettings, Database, NomadFake,
    NomadFault, NomadOperation, Process, ServerFixture, meet_link,
};

/// More than one command makes.
const MANY: usize = 1_000;

/// Where slots are.
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

    /// How many slots are there.
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

    /// A server with the pool, two slots that are idle and one with a bot, in which nothing runs that would call back.
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
async fn a_pool_that_left_is_removed_with_its_slots_once_the_provider_deletes_them(#[case] kind: Kind) {
    let elsewhere = Elsewhere::start(kind).await;
    let (ServerFixture { server, database, user, .. }, bot) = elsewhere.fixture().await;
    let (server, _) = start_again(server, &database, &other_pool()).await;
    let (folder, secret) = (database.folder.path(), elsewhere.secret());
    let remove = ["pools", "remove", "meet"];
    let forced = ["pools", "remove", "meet", "--yes", "--force"];

    let (well, said) = greenroom(folder, &database, &forced, None).await;
    assert!(!well && said.contains(&format!("set {} for this command", secret.0)), "{said}");
    let (well, said) = greenroom(folder, &database, &remove, Some(&secret)).await;
    let counted = format!("The pool meet ({}) has 3 slots; 1 have a bot, whose end is waited for.", elsewhere.name());
    assert!(!well && said.contains(&counted) && said.contains("say --yes"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (3, 3), "nothing is removed unasked");

    elsewhere.break_deletions();
    let (well, said) = greenroom(folder, &database, &forced, Some(&secret)).await;
    assert!(!well && said.contains("3 could not be removed; run the command again"), "{said}");
    assert!(!said.contains("somebody else works on it"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (3, 3), "what is there is known");
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
async fn nothing_is_left_elsewhere_after_down_and_what_is_not_deleted_is_kept(#[case] kind: Kind) {
    let elsewhere = Elsewhere::start(kind).await;
    let (ServerFixture { server, database, user, .. }, bot) = elsewhere.fixture().await;
    server.terminate().await;
    assert!(server.wait().await);
    let folder = database.folder.path();

    let (well, said) = greenroom(folder, &database, &["down"], None).await;
    assert!(!well && said.contains("This ends 1 bots and removes 3 slots of 1 pools:"), "{said}");
    assert!(said.contains("meet                 3") && said.contains("say --yes"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (3, 3), "nothing is removed unasked");

    elsewhere.break_deletions();
    let (well, said) = greenroom(folder, &database, &["down", "--yes"], None).await;
    assert!(!well && said.contains("3 could not be removed; run the command again"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (3, 3), "what is there is known");

    elsewhere.mend();
    let (well, said) = greenroom(folder, &database, &["down", "--yes"], None).await;
    assert!(well && said.contains("Ended 0 bots and removed 3 slots."), "{said}");
    assert!(said.contains("Nothing of this installation is left at its providers."), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (0, 0));
    elsewhere.expect_no_fault();

    let server = Process::start_with(&database, &[]).await;
    let bot = user.on(&server.url).show_bot(&bot).await;
    assert_eq!((&bot["status"], &bot["reason"]), (&json!("completed"), &json!("stopped")), "{bot}");
}

#[tokio::test]
async fn a_provider_that_is_away_is_named_by_pools_remove() {
    let elsewhere = Elsewhere::start(Kind::Nomad).await;
    let (ServerFixture { server, database, .. }, _) = elsewhere.fixture().await;
    let (_server, _) = start_again(server, &database, &other_pool()).await;
    let secret = elsewhere.secret();
    drop(elsewhere);
    let arguments = ["pools", "remove", "meet", "--yes", "--force"];
    let (well, said) = greenroom(database.folder.path(), &database, &arguments, Some(&secret)).await;
    assert!(!well && said.contains("the provider is away: "), "{said}");
    assert_eq!(stored_slots(&database).await, 3);
}

#[tokio::test]
async fn a_provider_that_is_away_for_a_moment_is_asked_again_by_down() {
    let fake = CoolifyFake::start(CoolifySettings::default()).await;
    // Something between answers for it, once for each slot.
    fake.break_next(CoolifyOperation::Delete, CoolifyFault::Page(502), 3);
    let elsewhere = Elsewhere::Coolify(fake);
    let (ServerFixture { server, database, .. }, _) = elsewhere.fixture().await;
    server.terminate().await;
    assert!(server.wait().await);
    let (well, said) = greenroom(database.folder.path(), &database, &["down", "--yes"], None).await;
    assert!(well && said.contains("removed 3 slots"), "{said}");
    assert_eq!((elsewhere.slots(), stored_slots(&database).await), (0, 0));
}
