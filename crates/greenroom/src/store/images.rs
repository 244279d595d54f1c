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
                      WHERE pulling_since IS NOT NULL AND lease_until > $1 ORDER BY pulling_since, image, host"
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
    /// Takes the image on the host for `holder`, unless another lives and has it.
    pub async fn take_image(
        &mut self,
        image: &Image,
        holder: Uuid,
        now: Timestamp,
        lease_until: Timestamp,
    ) -> Result<bool, StoreError> {
        let taken = self
            .first(
                sql!(
                    "images.take",
                    "INSERT INTO image_locks (image, host, holder, lease_until) VALUES ($1, $2, $3, $5)
                     ON CONFLICT (image, host) DO UPDATE
                         SET holder = excluded.holder, lease_until = excluded.lease_until, pulling_since = NULL
                      WHERE image_locks.lease_until <= $4 OR image_locks.holder = excluded.holder
                     RETURNING image"
                ),
                args![image.name.as_str(), image.host.as_str(), holder, now, lease_until],
            )
            .await?;
        Ok(taken.is_some())
    }

    /// Keeps the image for `holder`, who still has it and has pulled so much since then. False when it has not.
    pub async fn renew_image(
        &mut self,
        image: &Image,
        holder: Uuid,
        (since, pulled): (Timestamp, Pulled),
        now: Timestamp,
        lease_until: Timestamp,
    ) -> Result<bool, StoreError> {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let renewed = self
            .first(
                sql!(
                    "images.renew",
                    "UPDATE image_locks SET lease_until = $5, pulling_since = $6, layers = $7, layers_done = $8,
                            bytes = $9, bytes_done = $10
                      WHERE image = $1 AND host = $2 AND holder = $3 AND lease_until > $4 RETURNING image"
                ),
                args![
                    image.name.as_str(),
                    image.host.as_str(),
                    holder,
                    now,
                    lease_until,
                    since,
                    count(pulled.layers),
                    count(pulled.layers_done),
                    count(pulled.bytes),
                    count(pulled.bytes_done)
                ],
            )
            .await?;
        Ok(renewed.is_some())
    }

    pub async fn give_image_back(&mut self, image: &Image, holder: Uuid) -> Result<(), StoreError> {
        self.run(
            sql!("images.give_back", "DELETE FROM image_locks WHERE image = $1 AND host = $2 AND holder = $3"),
            args![image.name.as_str(), image.host.as_str(), holder],
        )
        .await
    }
}
