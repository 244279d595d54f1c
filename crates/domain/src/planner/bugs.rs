//! Bugs that a test plants, to prove that the tests would find them. This is possible only in test builds and with the
//! feature `model`.

/// The planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    LimitIgnored,
    LimitOffByOne,
    StoppingNotCounted,
    MinPriorityIgnored,
    DuplicateIgnored,
    IdempotencyForgotten,
    BodyHashIgnored,
    PlatformIgnored,
    RequirementsIgnored,
    PoolIgnored,
    SizeIgnored,
    LeastRecentReversed,
    ExpiryIgnored,
    PriorityIgnored,
    ArrivalReversed,
    FairIgnored,
    SlotStaysFree,
    StaysInQueue,
    DeploymentForgotten,
    PoolOvergrown,
    TokensSurviveClearing,
    FencingIgnored,
    EndedTwice,
    FreedWhileBusy,
    LateEventApplied,
    TimeoutIgnoresGrant,
    WarmBufferShort,
    EventForgotten,
    ClearForgotten,
    // The first tests of the planner found these bugs in it.
    IdleRenewed,
    FreedForgotten,
    DoneDeploymentSeen,
    RoomUnserved,
    AttemptCountedTwice,
    EndedBotMadeAgain,
    BotWrittenTwice,
    WarmLooksBack,
}

impl Bug {
    #[cfg(any(test, feature = "model"))]
    pub const ALL: [Bug; 37] = [
        Bug::LimitIgnored,
        Bug::LimitOffByOne,
        Bug::StoppingNotCounted,
        Bug::MinPriorityIgnored,
        Bug::DuplicateIgnored,
        Bug::IdempotencyForgotten,
        Bug::BodyHashIgnored,
        Bug::PlatformIgnored,
        Bug::RequirementsIgnored,
        Bug::PoolIgnored,
        Bug::SizeIgnored,
        Bug::LeastRecentReversed,
        Bug::ExpiryIgnored,
        Bug::PriorityIgnored,
        Bug::ArrivalReversed,
        Bug::FairIgnored,
        Bug::SlotStaysFree,
        Bug::StaysInQueue,
        Bug::DeploymentForgotten,
        Bug::PoolOvergrown,
        Bug::TokensSurviveClearing,
        Bug::FencingIgnored,
        Bug::EndedTwice,
        Bug::FreedWhileBusy,
        Bug::LateEventApplied,
        Bug::TimeoutIgnoresGrant,
        Bug::WarmBufferShort,
        Bug::EventForgotten,
        Bug::ClearForgotten,
        Bug::IdleRenewed,
        Bug::FreedForgotten,
        Bug::DoneDeploymentSeen,
        Bug::RoomUnserved,
        Bug::AttemptCountedTwice,
        Bug::EndedBotMadeAgain,
        Bug::BotWrittenTwice,
        Bug::WarmLooksBack,
    ];
}

#[cfg(any(test, feature = "model"))]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug on this thread, or removes it.
#[cfg(any(test, feature = "model"))]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted.
#[cfg(any(test, feature = "model"))]
pub fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether this bug is planted: never, in a build that is not for tests.
#[cfg(not(any(test, feature = "model")))]
#[inline(always)]
pub const fn has(_: Bug) -> bool {
    false
}
