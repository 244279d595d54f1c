//! The progress of image pulls. The replica that pulls has the lease of the image: see [`super::leases`].

use jiff::Timestamp;
use uuid::Uuid;

use super::sql::{args, sql};
use super::{Run, Store, StoreError, Tx};

/// An image on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub host: String,
}

/// The progress of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    pub layers: u64,
    pub layers_done: u64,
    /// Of the layers whose size is known.
    pub bytes: u64,
    pub bytes_done: u64,
}

/// An image that is being pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullRow {
    pub image: Image,
    pub since: Timestamp,
    pub pulled: Pulled,
}

impl Store {
    /// The pulls that are in progress.
    pub async fn pulls(&self, now: Timestamp) -> Result<Vec<PullRow>, StoreError> {
        self.reader()
            .all(
                sql!(
                    "images.pulls",
                    "SELECT image, host, pulling_since, layers, layers_done, bytes, bytes_done FROM image_locks
                      WHERE pulling_since IS NOT NULL AND (replica IS NOT NULL OR lease_until > $1)
                      ORDER BY pulling_since, image, host"
                ),
                args![now],
            )
            .await?
            .iter()
            .map(|row| {
                let count = |column| Ok::<_, StoreError>(u64::try_from(row.int(column)?).unwrap_or(0));
                Ok(PullRow {
                    image: Image { name: row.text("image")?, host: row.text("host")? },
                    since: row.time("pulling_since")?,
                    pulled: Pulled {
                        layers: count("layers")?,
                        layers_done: count("layers_done")?,
                        bytes: count("bytes")?,
                        bytes_done: count("bytes_done")?,
                    },
                })
            })
            .collect()
    }
}

impl Tx {
    /// Stores the progress of a pull. False if the holder does not have the lease any more.
    pub async fn show_pull(
        &mut self,
        image: &Image,
        holder: Uuid,
        since: Timestamp,
        pulled: Pulled,
    ) -> Result<bool, StoreError> {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let shown = self
            .first(
                sql!(
                    "images.show_pull",
                    "UPDATE image_locks
                        SET pulling_since = $4, layers = $5, layers_done = $6, bytes = $7, bytes_done = $8
                      WHERE image = $1 AND host = $2 AND holder = $3 RETURNING image"
                ),
                args![
                    image.name.as_str(),
                    image.host.as_str(),
                    holder,
                    since,
                    count(pulled.layers),
                    count(pulled.layers_done),
                    count(pulled.bytes),
                    count(pulled.bytes_done)
                ],
            )
            .await?;
        Ok(shown.is_some())
    }
}
