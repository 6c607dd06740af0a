//! The words by which a document tells messages apart are in the source.

use crate::pages::page;
use crate::source::all_code;

/// Tables whose first column has words of messages in bold.
const MESSAGES: &[(&str, &str)] =
    &[("troubleshooting", "## When the driver refuses"), ("operations", "## Recovery")];

#[test]
fn every_message_that_is_explained_can_be_met() {
    let code = all_code();
    for (name, heading) in MESSAGES {
        let rows = page(name).rows(heading);
        let words: Vec<String> = rows.iter().flat_map(|cells| bold(&cells[0])).collect();
        assert!(words.len() > 5, "{name} explains few messages: {words:?}");
        for words in words {
            assert!(code.contains(words.trim_end_matches('…')), "{name}: no message has the words {words:?}");
        }
    }
}

fn bold(text: &str) -> Vec<String> {
    text.split("**").skip(1).step_by(2).map(str::to_owned).collect()
}
