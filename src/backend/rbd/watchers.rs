//! Who watches an image, looked at until it can be believed.

use std::time::Duration;

use crate::backend::Image;
use crate::error::Result;

use crate::backend::rbd::cli::Cli;
use crate::backend::rbd::cli::json::Watcher;

/// How often watchers are looked at before they are believed.
pub(super) const LOOKS: u32 = 3;
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(700);

/// Looks at the watchers until they are `fine`, a few times: every command that opens an image for writing (also
/// `rbd image-meta list`) watches it for a moment. None where there is no such image.
pub(super) async fn settled_watchers(
    cli: &Cli<'_>,
    image: &Image,
    fine: impl Fn(&[Watcher]) -> bool,
) -> Result<Option<Vec<Watcher>>> {
    watchers_after(LOOKS, cli, image, fine).await
}

/// The same with so many looks at most.
pub(super) async fn watchers_after(
    looks: u32,
    cli: &Cli<'_>,
    image: &Image,
    fine: impl Fn(&[Watcher]) -> bool,
) -> Result<Option<Vec<Watcher>>> {
    let mut watchers = cli.watchers(image).await?;
    for _ in 1..looks {
        if watchers.as_deref().is_none_or(&fine) {
            break;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        watchers = cli.watchers(image).await?;
    }
    Ok(watchers)
}
