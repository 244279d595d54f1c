//! The image lock: one puller per image and host, however many slots need the image at once.

use domain::SlotName;
use greenroom::providers::ProviderError;
use greenroom::store::PoolRow;
use rstest::rstest;

use crate::support::{Backend, Call, Fake, Stage, pool, until, wish};

const SLOTS: usize = 10;

fn meet() -> PoolRow {
    PoolRow { max_slots: SLOTS as i64, ..pool("meet") }
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn ten_slots_whose_image_is_missing_pull_it_once(#[case] backend: Backend) {
    let stage = Stage::with(backend, [meet()], SLOTS as u32, Fake::hanging().without_image()).await;
    let answers = stage.house.ask_at_once((0..SLOTS).map(wish)).await;
    until("one pulls, and the others have given their places back", async || {
        stage.at_gate().await == (1, SLOTS - 1) && stage.fake.count(&Call::Pull) == 1
    })
    .await;
    assert_eq!(stage.fake.starting(), 0, "nothing starts without its image");
    until("whoever looks sees what is being pulled, and how far it is", async || {
        let pulls = stage.house.store.pulls(stage.house.clock.now()).await.unwrap();
        let shown = pulls.iter().map(|pull| (pull.image.name.as_str(), pull.pulled.layers, pull.pulled.bytes_done));
        shown.collect::<Vec<_>>() == [("bot", 3, 500)]
    })
    .await;
    stage.fake.release(1 + SLOTS);
    for answer in answers {
        stage.runs(answer.bot.id).await;
    }
    assert_eq!(stage.fake.count(&Call::Pull), 1);
    assert_eq!(stage.fake.starts().len(), SLOTS);
    assert_eq!(stage.house.store.pulls(stage.house.clock.now()).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_goes_on_when_the_bot_that_it_was_begun_for_is_stopped() {
    let stage = Stage::with(Backend::Sqlite, [meet()], SLOTS as u32, Fake::hanging().without_image()).await;
    let first = stage.house.reserved(0).await;
    until("it is being pulled", async || stage.fake.count(&Call::Pull) == 1).await;
    let second = stage.house.reserved(1).await;
    let voice = stage.voice_of(&stage.bot(first).await).unwrap();
    stage.house.exited(voice, 0).await.unwrap();
    // Whoever started it looks every few seconds whether it is still wanted, and goes away then.
    until("it is cleared", async || stage.fake.count(&Call::Stop(SlotName::new("meet", 1))) == 1).await;
    stage.fake.release(10);
    stage.runs(second).await;
    assert_eq!(stage.fake.count(&Call::Pull), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_postgres_pull_an_image_once() {
    let left = Stage::with(Backend::Postgres, [meet()], SLOTS as u32, Fake::hanging().without_image()).await;
    let right = left.beside(SLOTS as u32).await;
    let (some, others) =
        tokio::join!(left.house.ask_at_once((0..5).map(wish)), right.house.ask_at_once((5..SLOTS).map(wish)));
    until("one pulls, and the others have given their places back", async || {
        left.at_gate().await == (1, SLOTS - 1) && left.fake.count(&Call::Pull) == 1
    })
    .await;
    left.fake.release(1 + SLOTS);
    for answer in some.iter().chain(&others) {
        left.runs(answer.bot.id).await;
    }
    assert_eq!(left.fake.count(&Call::Pull), 1);
}

#[rstest]
#[case::sqlite(Backend::Sqlite)]
#[case::postgres(Backend::Postgres)]
#[tokio::test(flavor = "multi_thread")]
async fn after_a_pull_that_failed_the_next_one_tries(#[case] backend: Backend) {
    let fake = Fake::default().without_image().failing_pulls([ProviderError::never("unauthorized: sign in first")]);
    let stage = Stage::with(backend, [meet()], SLOTS as u32, fake).await;
    let answers = stage.house.ask_at_once((0..SLOTS).map(wish)).await;
    until("all have come through", async || stage.at_gate().await == (0, 0)).await;
    let mut errors = Vec::new();
    for answer in answers {
        errors.extend(stage.bot(answer.bot.id).await.error);
    }
    assert_eq!(errors, ["unauthorized: sign in first"], "one bot fails, in the provider's words");
    assert_eq!(stage.fake.count(&Call::Pull), 2);
    assert_eq!(stage.fake.starts().len(), SLOTS - 1);
}
