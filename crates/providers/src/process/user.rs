//! The account that slots run as, if the pool configures one.

use std::ffi::CString;

use nix::unistd::{Gid, Uid, User, initgroups, setgid, setuid};

use crate::ProviderError;

#[derive(Clone, Debug)]
pub struct Account {
    pub name: String,
    pub uid: Uid,
    pub gid: Gid,
}

impl Account {
    pub fn find(name: &str) -> Result<Self, ProviderError> {
        match User::from_name(name) {
            Ok(Some(user)) => Ok(Self { name: user.name, uid: user.uid, gid: user.gid }),
            Ok(None) => Err(ProviderError::permanent(format!("there is no user `{name}` on this machine"))),
            Err(error) => Err(ProviderError::transient(format!("the user `{name}` cannot be looked up: {error}"))),
        }
    }

    /// Switches this process to the account. The process cannot switch back.
    pub fn switch_to_account(&self) -> Result<(), String> {
        let denied = |error: nix::Error| {
            let name = &self.name;
            format!("the server may not run slots as `{name}` ({error}): run the server as root, or remove `user`")
        };
        let name = CString::new(self.name.as_str()).map_err(|error| error.to_string())?;
        initgroups(&name, self.gid).map_err(denied)?;
        setgid(self.gid).map_err(denied)?;
        setuid(self.uid).map_err(denied)
    }
}
