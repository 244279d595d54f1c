//! Who brings an image to a host, one at a time, and how far that has come.

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

/// What a pull has brought so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    pub layers: u64,
    pub layers_done: u64,
    /// Of the layers whose size is known by now.
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
    /// What is being pulled now.
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
    /// Takes the image on the host for `holder`, unless another has it. Who comes second waits here until the first
    /// one's transaction ends, and whoever gives the image back waits for who comes second: nobody waits for an image
    /// that was given back meanwhile. A lock of a replica of the version before ends by time.
    pub async fn take_image(
        &mut self,
        image: &Image,
        holder: Uuid,
        replica: Uuid,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let taken = self
            .first(
                sql!(
                    "images.take",
                    "INSERT INTO image_locks (image, host, holder, replica, lease_until)
                     VALUES ($1, $2, $3, $4, '9999-01-01T00:00:00.000000Z')
                     ON CONFLICT (image, host) DO UPDATE
                         SET holder = excluded.holder, replica = excluded.replica, lease_until = excluded.lease_until,
                             pulling_since = NULL
                      WHERE image_locks.replica IS NULL AND image_locks.lease_until <= $5
                         OR image_locks.holder = excluded.holder
                     RETURNING image"
                ),
                args![image.name.as_str(), image.host.as_str(), holder, replica, now],
            )
            .await?;
        Ok(taken.is_some())
    }

    /// Shows how far the pull of an image has come since then. False when it is no longer the holder's.
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

    pub async fn give_image_back(&mut self, image: &Image, holder: Uuid) -> Result<(), StoreError> {
        self.run(
            sql!("images.give_back", "DELETE FROM image_locks WHERE image = $1 AND host = $2 AND holder = $3"),
            args![image.name.as_str(), image.host.as_str(), holder],
        )
        .await
    }
}
