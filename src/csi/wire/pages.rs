//! Pages of a list, and the tokens between them.

use uuid::Uuid;

use crate::backend::Page;
use crate::error::{Error, Result};

/// A token is the uuid of the last entry of the page before: it stays good whatever is deleted meanwhile.
pub(crate) fn page(max_entries: i32, token: &str) -> Result<Page> {
    let most = usize::try_from(max_entries).map_err(|_| {
        Error::Invalid(format!("max_entries {max_entries}: it is not negative; 0 is no limit"))
    })?;
    let after = (!token.is_empty()).then(|| Uuid::try_parse(token)).transpose().map_err(|_| {
        Error::Busy(format!("starting_token {token:?} is none of this driver: start anew without a token"))
    })?;
    Ok(Page { after, most: Some(most).filter(|most| *most > 0) })
}

/// Empty at the end of a list.
pub(super) fn token(next: Option<Uuid>) -> String {
    next.map(|uuid| uuid.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_token_is_the_last_entry_of_the_page_before() {
        let last = Uuid::from_u128(7);
        let page = |max, token: &str| super::page(max, token).map_err(|error| error.code());
        assert_eq!(page(0, ""), Ok(Page { after: None, most: None }));
        assert_eq!(page(3, &token(Some(last))), Ok(Page { after: Some(last), most: Some(3) }));
        assert_eq!(token(None), "");
        assert_eq!(page(-1, ""), Err(Code::InvalidArgument));
        assert_eq!(page(0, "invalid-token"), Err(Code::Aborted));
    }
}
