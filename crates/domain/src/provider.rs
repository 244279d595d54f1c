//! The kinds of providers, and the properties that placement needs.

use crate::text_enum::text_enum;

/// A kind of provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProviderKind {
    /// Processes of this machine.
    Process,
    /// Containers of a Docker Engine.
    Docker,
    /// Services of a Docker Swarm.
    Swarm,
    /// Jobs of Nomad.
    Nomad,
    /// Applications of Coolify.
    Coolify,
    /// Runners on EC2.
    Ec2,
}

/// A text that is not a kind of provider.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a provider; the providers are process, docker, swarm, nomad, coolify, ec2")]
pub struct UnknownProvider(pub String);

text_enum!(ProviderKind, UnknownProvider {
    Process = "process",
    Docker = "docker",
    Swarm = "swarm",
    Nomad = "nomad",
    Coolify = "coolify",
    Ec2 = "ec2",
});

impl ProviderKind {
    /// Whether a slot gets its machine only when it has a bot. Then nothing can be made ahead, and the attributes of an
    /// idle slot are not known.
    pub fn provisioned_per_bot(self) -> bool {
        match self {
            Self::Ec2 => true,
            Self::Process | Self::Docker | Self::Swarm | Self::Nomad | Self::Coolify => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_every_kind() {
        let error = UnknownProvider("k8s".to_owned()).to_string();
        assert_eq!("k8s".parse::<ProviderKind>(), Err(UnknownProvider("k8s".to_owned())));
        assert!(ProviderKind::ALL.iter().all(|kind| error.contains(kind.as_str())), "{error}");
    }
}
