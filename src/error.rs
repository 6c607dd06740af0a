//! The one error of the driver, the gRPC code of each kind, and the only way from one to the other.

use std::error::Error as StdError;
use std::sync::Arc;

use tonic::{Code, Status};

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, by what the caller should do about it. Each text says what, with which value, and what to do.
///
/// Clone, because every caller that joined an operation gets the same answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Error {
    /// The request itself is wrong and will stay wrong.
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    NotFound(String),
    /// The name is taken by something that differs from what is asked.
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    OutOfRange(String),
    #[error("{0}")]
    NoSpace(String),
    /// In use, in the wrong order, or the storage is not set up for it: somebody has to act first.
    #[error("{0}")]
    Precondition(String),
    #[error("{0}")]
    Denied(String),
    /// Something still runs, here or in a twin: ask again.
    #[error("{0}")]
    Busy(String),
    #[error("{0}")]
    TimedOut(String),
    /// A call that is not served here.
    #[error("{0}")]
    Unbuilt(String),
    #[error("{context}")]
    Internal {
        context: String,
        #[source]
        source: Option<Arc<dyn StdError + Send + Sync>>,
    },
}

impl Error {
    /// An internal error with its cause; the status carries the whole chain.
    pub(crate) fn internal(
        context: impl Into<String>,
        source: impl StdError + Send + Sync + 'static,
    ) -> Self {
        Self::Internal { context: context.into(), source: Some(Arc::new(source)) }
    }

    /// An internal error that has no further cause.
    pub(crate) fn broken(context: impl Into<String>) -> Self {
        Self::Internal { context: context.into(), source: None }
    }

    /// ABORTED and DEADLINE_EXCEEDED tell the sidecars that the work may still be running (provisioner `checkError`):
    /// only `Busy` and `TimedOut` say so.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::NotFound(_) => Code::NotFound,
            Self::Conflict(_) => Code::AlreadyExists,
            Self::OutOfRange(_) => Code::OutOfRange,
            Self::NoSpace(_) => Code::ResourceExhausted,
            Self::Precondition(_) => Code::FailedPrecondition,
            Self::Denied(_) => Code::Unauthenticated,
            Self::Busy(_) => Code::Aborted,
            Self::TimedOut(_) => Code::DeadlineExceeded,
            Self::Unbuilt(_) => Code::Unimplemented,
            Self::Internal { .. } => Code::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Status::new(error.code(), chain(&error))
    }
}

/// An error and all its causes in one line, outermost first.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_carries_the_whole_chain() {
        let error = Error::internal("writing the stash", std::io::Error::other("disk full"));
        let status = Status::from(error);
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "writing the stash: disk full");
    }
}
