//! Which policy a job of a kind gets.

use std::collections::HashMap;

use crate::ids::Kind;
use crate::job::PolicyChoice;
use crate::retry::{Mode, Policy};

/// Policies by kind, as configured. A kind that is not named is external, with the defaults.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    by_kind: HashMap<Kind, Policy>,
}

impl Policies {
    /// Sets the policy of a kind.
    #[must_use]
    pub fn with(mut self, kind: Kind, policy: Policy) -> Self {
        self.by_kind.insert(kind, policy);
        self
    }

    /// What a charge of `kind` gets that asks for `choice`.
    #[must_use]
    pub fn resolve(&self, kind: &Kind, choice: Option<PolicyChoice>) -> Policy {
        let configured = self.by_kind.get(kind).copied();
        match choice {
            None => configured.unwrap_or(Policy::default_for(Mode::External)),
            Some(PolicyChoice::Mode(mode)) => Policy {
                mode,
                ..configured.unwrap_or(Policy::default_for(mode))
            },
            Some(PolicyChoice::Full(policy)) => policy,
        }
    }
}
