//! The contract of the store: both databases behave the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::planner::bot::OpenBot;
use domain::planner::changes::NewKey;
use domain::planner::{Changes, Snapshot};
use domain::{Action, BotId, CommandId, ConnectionId, KeyId, Meeting, Reason, Status, UserId};
use greenroom::clock::Clock;
use greenroom::random::Random;
use greenroom::store::{
    Actor, Applied, Beat, BotDetails, Change, Changed, CommandRow, KeyRow, Kind, NewEvent, SegmentPosition, SegmentRow,
    Store, StoreError, UserRow,
};
use jiff::Timestamp;
use rstest::rstest;
use serde_json::json;
use uuid::Uuid;

use crate::support::{Backend, Database, placement_writes};

fn now() -> Timestamp {
    Clock::System.now()
}

fn id() -> Uuid {
    Random::System.id(now()).unwrap()
}

fn user(limit: i64) -> UserRow {
    UserRow {
        id: UserId(id()),
        email: "ada@example.com".to_owned(),
        name: "Ada Lovelace ✨".to_owned(),
        image_url: None,
        max_concurrent_bots: limit,
        min_priority: -5,
        data: json!({"plan": "pro", "n": 1.5, "nested": [null, true]}).as_object().unwrap().clone(),
        created_at: now(),
        updated_at: now(),
    }
}

fn bot(user: UserId, number: usize) -> (OpenBot, BotDetails) {
    placement_writes::new_bot(BotId(id()), user, Meeting::from_link(&crate::support::meet_link(number)).unwrap())
}

fn event(bot: BotId, user: UserId) -> NewEvent {
    NewEvent {
        bot_id: bot,
        user_id: user,
        kind: Kind::Created,
        from: None,
        to: None,
        reason: None,
        actor: Actor::User,
        start_kind: None,
    }
}

async fn insert_user(store: &Store, limit: i64) -> UserRow {
    let user = user(limit);
    let mut tx = store.begin_changing(&Changed::user(user.id), now()).await.unwrap();
    tx.insert_user(&user).await.unwrap();
    tx.commit().await.unwrap();
    user
}

async fn insert_key(store: &Store, user: UserId) -> KeyRow {
    let key = KeyRow { id: KeyId(id()), user_id: user, hash: "h".repeat(64), created_at: now(), expires_at: None };
    let mut tx = store.begin_changing(&Changed::user(user), now()).await.unwrap();
    tx.insert_key(&key).await.unwrap();
    tx.commit().await.unwrap();
    key
}

async fn insert_bot(store: &Store, user: UserId, number: usize) -> BotId {
    let (bot, details) = bot(user, number);
    let (changes, details) = placement_writes::one_new_bot(&bot, &details);
    assert_eq!(placement_writes::write(store, &changes, &details, now()).await.unwrap(), Applied::Committed);
    bot.id
}

async fn move_bot(store: &Store, id: BotId, to: Status) {
    let mut tx = store.begin_changing(&Changed::bot(id, None), now()).await.unwrap();
    let change = Change { to, reason: Some(Reason::Own("why".to_owned())), fault: None, error: None, exit_code: None };
    tx.move_bot(id, &change, now()).await.unwrap();
    if to.is_ended() {
        let user = tx.bot(id).await.unwrap().unwrap().user_id;
        tx.close_bot(id, user).await.unwrap();
    }
    tx.commit().await.unwrap();
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn rows_are_read_back_as_they_were_written(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    assert_eq!(store.user(user.id).await.unwrap(), Some(user.clone()));
    let (new, said) = bot(user.id, 1);
    let (changes, details) = placement_writes::one_new_bot(&new, &said);
    let at = now();
    assert_eq!(placement_writes::write(&store, &changes, &details, at).await.unwrap(), Applied::Committed);
    let read = store.bot(new.id).await.unwrap().unwrap();
    assert_eq!((read.id, read.user_id, read.platform, read.status), (new.id, user.id, new.platform, Status::Reserved));
    assert_eq!((read.native_meeting_id, read.priority, read.pool), (new.native_meeting_id, new.priority, new.pool));
    assert_eq!((read.meeting_url, read.bot_display_name), (said.meeting_url, said.bot_display_name));
    assert_eq!((read.config, read.metadata, read.requirements), (said.config, said.metadata, None));
    assert_eq!((read.created_at, read.updated_at), (at, at));
    assert_eq!(store.user(UserId(id())).await.unwrap(), None);
    assert_eq!(store.bot(BotId(id())).await.unwrap(), None);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_rolled_back_transaction_leaves_no_change_and_no_event(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let bot = insert_bot(&store, user.id, 1).await;
    let mut tx = store.begin().await.unwrap();
    let change = Change { to: Status::Failed, reason: None, fault: None, error: None, exit_code: None };
    tx.move_bot(bot, &change, now()).await.unwrap();
    tx.record(&event(bot, user.id), now()).await.unwrap();
    drop(tx);
    assert_eq!(store.bot(bot).await.unwrap().unwrap().status, Status::Reserved);
    assert!(store.events_of_bot(bot).await.unwrap().is_empty());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_locked_user_stays_locked_until_the_end_of_the_transaction(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let changed = Changed::user(user.id);
    let mut first = store.begin_changing(&changed, now()).await.unwrap();
    first.hold_user(user.id).await.unwrap().unwrap();
    let entered = Arc::new(AtomicBool::new(false));
    let second = tokio::spawn({
        let (store, entered) = (store.clone(), entered.clone());
        async move {
            let mut tx = store.begin().await.unwrap();
            let seen = tx.hold_user(user.id).await.unwrap().unwrap();
            entered.store(true, Ordering::SeqCst);
            seen.name
        }
    });
    // Many turns, in which the second could have entered if that were possible.
    for _ in 0..200 {
        first.setting("nothing").await.unwrap();
        assert!(!entered.load(Ordering::SeqCst));
    }
    first.update_user(&UserRow { name: "changed".to_owned(), ..user }).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), "changed", "the second must see what the first wrote");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_among_many_at_once(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 0).await;
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let store = store.clone();
        workers.spawn(async move {
            let mut tx = store.begin_changing(&Changed::user(user.id), now()).await.unwrap();
            let mut seen = tx.hold_user(user.id).await.unwrap().unwrap();
            seen.max_concurrent_bots += 1;
            tx.update_user(&seen).await.unwrap();
            tx.commit().await.unwrap();
        });
    }
    workers.join_all().await;
    assert_eq!(store.user(user.id).await.unwrap().unwrap().max_concurrent_bots, 60);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn only_bots_that_have_not_ended_are_found(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 9).await;
    for (number, status) in Status::ALL.into_iter().enumerate() {
        let id = insert_bot(&store, user.id, number).await;
        move_bot(&store, id, status).await;
    }
    let snapshot = store.load_snapshot().await.unwrap();
    let running = Status::ALL.iter().filter(|status| status.is_running()).count() as i64;
    assert_eq!((snapshot.counts(user.id).running, snapshot.counts(user.id).stopping), (running, 1));
    let open = store.open_bots_of(user.id, None, 100).await.unwrap();
    let open: Vec<_> = open.iter().map(|bot| bot.unwrap().id).collect();
    assert_eq!(open.len(), Status::OPEN.len());
    let rest = store.open_bots_of(user.id, Some(open[1]), 2).await.unwrap();
    assert_eq!(rest.iter().map(|bot| bot.unwrap().id).collect::<Vec<_>>(), open[2..4]);
    assert_eq!(store.open_bots_by_status().await.unwrap().len(), Status::OPEN.len());
    let counted = store.count_by_status(open.iter().copied()).await.unwrap();
    assert_eq!(counted.iter().map(|(_, count)| *count).sum::<i64>(), open.len() as i64);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_status_change_keeps_the_first_start_and_sets_the_end(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let id = insert_bot(&store, user.id, 1).await;
    move_bot(&store, id, Status::Starting).await;
    let first = store.bot(id).await.unwrap().unwrap();
    move_bot(&store, id, Status::Active).await;
    move_bot(&store, id, Status::Starting).await;
    let repeated = store.bot(id).await.unwrap().unwrap();
    assert!(first.start_time.is_some());
    assert_eq!(repeated.start_time, first.start_time);
    assert_eq!(repeated.end_time, None);
    move_bot(&store, id, Status::Failed).await;
    let ended = store.bot(id).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.reason.as_deref()), (Status::Failed, Some("why")));
    assert!(ended.end_time.is_some());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn pages_stay_right_while_bots_arrive(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 99).await;
    let mut expected = Vec::new();
    for number in 0..10 {
        expected.push(insert_bot(&store, user.id, number).await);
    }
    expected.reverse();
    let (mut seen, mut before) = (Vec::new(), None);
    for number in 10.. {
        let page = store.bots_of(user.id, before, 3).await.unwrap();
        let page: Vec<_> = page.iter().map(|bot| bot.unwrap().id).collect();
        let Some(last) = page.last() else { break };
        before = Some(*last);
        seen.extend(page);
        insert_bot(&store, user.id, number).await;
    }
    assert_eq!(seen, expected);
    assert!(store.bots(before, 9).await.unwrap().is_empty());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn an_older_heartbeat_never_replaces_a_newer_one(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 99).await;
    let mut beats = Vec::new();
    for number in 0..50 {
        let bot_id = insert_bot(&store, user.id, number).await;
        let connection_id = ConnectionId(id());
        let mut tx = store.begin().await.unwrap();
        assert!(tx.make_session(bot_id, connection_id, Some("c1"), now()).await.unwrap());
        assert!(!tx.make_session(bot_id, connection_id, Some("c2"), now()).await.unwrap());
        tx.commit().await.unwrap();
        beats.push((bot_id, Beat { connection_id, at: now() }));
    }
    let all: Vec<Beat> = beats.iter().map(|(_, beat)| *beat).collect();
    store.write_heartbeats(&all).await.unwrap();
    let later = Beat { at: all[0].at + Duration::from_secs(5), ..all[0] };
    store.write_heartbeats(&[later]).await.unwrap();
    store.write_heartbeats(&all).await.unwrap();
    store.write_heartbeats(&[]).await.unwrap();
    for (bot, at) in [(beats[0].0, later.at), (beats[49].0, all[49].at)] {
        let sessions = store.sessions(bot).await.unwrap();
        assert_eq!(sessions[0].last_heartbeat_at, Some(at));
        assert_eq!(sessions[0].container_id.as_deref(), Some("c1"));
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_segment_is_stored_once_and_read_in_the_order_of_speech(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let bot = insert_bot(&store, user.id, 1).await;
    let connection_id = ConnectionId(id());
    let segment = |start: f64, text: &str| SegmentRow {
        connection_id,
        digest: format!("{start}{text}"),
        start_time: start,
        end_time: start + 1.0,
        text: text.to_owned(),
        speaker: Some("Ada".to_owned()),
        language: None,
    };
    let batch =
        [segment(2.0, "second 'quoted' \\ ünï"), segment(0.25, "first"), segment(2.0, "second 'quoted' \\ ünï")];
    let mut tx = store.begin().await.unwrap();
    assert_eq!(tx.insert_segments(bot, &batch, now()).await.unwrap(), 2);
    assert_eq!(tx.insert_segments(bot, &batch, now()).await.unwrap(), 0);
    assert_eq!(tx.insert_segments(bot, &[segment(9.0, "third")], now()).await.unwrap(), 1);
    let digests = [batch[0].digest.clone(), "unknown".to_owned()];
    assert_eq!(tx.known_segments(bot, &digests).await.unwrap(), 1);
    tx.commit().await.unwrap();
    let read = store.transcript(bot, SegmentPosition::FIRST, 100).await.unwrap();
    let (positions, said): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    assert_eq!(said, [batch[1].clone(), batch[0].clone(), segment(9.0, "third")]);
    let rest = store.transcript(bot, positions[0], 1).await.unwrap();
    assert_eq!(rest, [(positions[1], batch[0].clone())]);
    let sizes = store.segment_sizes(bot, positions[0], 100).await.unwrap();
    let bytes = |segment: &SegmentRow| i64::try_from(segment.text.len() + "Ada".len()).unwrap();
    assert_eq!(sizes, [(positions[1], bytes(&batch[0])), (positions[2], bytes(&segment(9.0, "third")))]);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_command_is_open_until_its_own_bot_acknowledges_it(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let (mine, other) = (insert_bot(&store, user.id, 1).await, insert_bot(&store, user.id, 2).await);
    let command = CommandRow { id: CommandId(id()), action: Action::Reconfigure, payload: json!({"a": [1]}) };
    let mut tx = store.begin().await.unwrap();
    tx.insert_command(mine, &command, now()).await.unwrap();
    assert_eq!(tx.acknowledge(other, &[command.id], now()).await.unwrap(), []);
    tx.commit().await.unwrap();
    assert_eq!(store.open_commands(mine).await.unwrap(), std::slice::from_ref(&command));
    let mut tx = store.begin().await.unwrap();
    let both = [command.id, CommandId(id())];
    assert_eq!(tx.acknowledge(mine, &both, now()).await.unwrap(), [Action::Reconfigure]);
    assert_eq!(tx.acknowledge(mine, &both, now()).await.unwrap(), []);
    tx.commit().await.unwrap();
    assert!(store.open_commands(mine).await.unwrap().is_empty());
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn keys_and_idempotency_keys_are_found_again(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let key = insert_key(&store, user.id).await;
    let before = NewKey { user: user.id, key: "k".to_owned(), body_hash: "b".to_owned(), bot: BotId(id()) };
    let end = now();
    let changes = Changes { new_keys: vec![before.clone()], ..Changes::default() };
    let nothing = Default::default();
    assert_eq!(placement_writes::write(&store, &changes, &nothing, now()).await.unwrap(), Applied::Committed);
    assert_eq!(
        placement_writes::write(&store, &changes, &nothing, now()).await.unwrap(),
        Applied::Conflict,
        "only once"
    );
    let mut snapshot = Snapshot::default();
    let asked = ["k", "K"].map(|key| (user.id, key.to_owned()));
    store.load_keys(&mut snapshot, &asked).await.unwrap();
    assert_eq!(snapshot.key(user.id, "k").map(|known| known.bot_id), Some(before.bot));
    assert_eq!(snapshot.key(user.id, "K"), None);
    assert_eq!(store.key(key.id).await.unwrap(), Some((key.clone(), user.clone())));
    let mut tx = store.begin_changing(&Changed::user(user.id), now()).await.unwrap();
    tx.expire_keys(user.id, end).await.unwrap();
    tx.expire_keys(user.id, end + Duration::from_secs(60)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(
        store.key(key.id).await.unwrap().unwrap().0.expires_at,
        Some(end),
        "the expiry of a key is never postponed"
    );
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn of_many_concurrent_writers_of_a_setting_one_wins_and_all_read_its_value(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let mut workers = tokio::task::JoinSet::new();
    for number in 0..20 {
        let store = store.clone();
        workers.spawn(async move {
            let mut tx = store.begin().await.unwrap();
            let first = tx.keep_setting("secret", &number.to_string()).await.unwrap();
            let read = tx.setting("secret").await.unwrap().unwrap();
            tx.commit().await.unwrap();
            (first, read)
        });
    }
    let kept = workers.join_all().await;
    assert_eq!(kept.iter().filter(|(first, _)| *first).count(), 1);
    assert!(kept.iter().all(|(_, read)| *read == kept[0].1), "{kept:?}");
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn several_processes_may_open_an_empty_database_at_once(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = database.url.clone();
        workers.spawn(async move { Store::open(&url).await });
    }
    for opened in workers.join_all().await {
        drop(opened.unwrap().begin().await.unwrap());
    }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_not_touched(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    database.open().await.close().await;
    database
        .execute(
            "INSERT INTO schema_versions (version, name, applied_at)
             VALUES (9999, 'from the future', '2030-01-01T00:00:00.000000Z'); DROP TABLE heartbeats",
        )
        .await;
    let refused = Store::open(&database.url).await;
    assert!(matches!(refused, Err(StoreError::Newer { found: 9999, .. })), "{refused:?}");
    // If a migration had run, it would have created the table, and this would fail.
    database.execute("CREATE TABLE heartbeats (at INTEGER)").await;
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test]
async fn a_row_that_cannot_be_read_is_named_with_its_table_and_column(#[case] backend: Backend) {
    let database = Database::new(backend).await;
    let store = database.open().await;
    let (user, other) = (insert_user(&store, 3).await, insert_user(&store, 3).await);
    database.reader().await.execute(format!("UPDATE users SET data = '[1]' WHERE id = '{}'", user.id)).await;
    let error = store.user(user.id).await.unwrap_err();
    assert!(matches!(error, StoreError::Inconsistent { column: "data", .. }), "{error:?}");
    let named = format!("in the table users, column data of the row id {} holds", user.id);
    assert!(error.to_string().contains(&named), "{error}");
    assert!(store.user(other.id).await.is_ok(), "the other row can be read");
}

#[tokio::test]
async fn an_invalid_time_in_sqlite_is_an_inconsistent_row() {
    let database = Database::new(Backend::Sqlite).await;
    let store = database.open().await;
    let user = insert_user(&store, 3).await;
    let change = format!("UPDATE users SET created_at = 'yesterday' WHERE id = '{}'", user.id);
    database.reader().await.execute(change).await;
    let error = store.user(user.id).await.unwrap_err().to_string();
    let named = format!("in the table users, column created_at of the row id {} holds `yesterday`", user.id);
    assert!(error.contains(&named), "{error}");
}

#[tokio::test]
async fn an_sqlite_database_in_memory_is_refused() {
    let refused = Store::open("sqlite::memory:").await;
    assert!(matches!(refused, Err(StoreError::Url(ref message)) if message.contains("loses every bot")), "{refused:?}");
}

#[tokio::test]
async fn an_sqlite_file_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let database = Database::new(Backend::Sqlite).await;
    database.open().await;
    let file = database.folder.path().join("greenroom.db");
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
}
