//! The server under measurement, in this process, on a database of its own that is gone afterwards.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{Attributes, Deadlines, SlotName, SlotStatus, UserId, slot};
use serde_json::Map;
use sqlx::Connection;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::Done;
use crate::admission::users::NewUser;
use crate::api::App;
use crate::config::Config;
use crate::config::pool::PoolConfig;
use crate::providers::{Found, Provider, ProviderError, Providers, Spec, Stopped};
use crate::server::{Server, ServerError};
use crate::store::{Batch, SlotRow};

/// A provider without anything behind it: what is measured is the server.
#[derive(Debug)]
pub struct Nothing;

#[async_trait]
impl Provider for Nothing {
    async fn create(&self, spec: &Spec) -> Result<String, ProviderError> {
        Ok(spec.slot.to_string())
    }

    async fn start(&self, spec: &Spec) -> Result<String, ProviderError> {
        Ok(spec.slot.to_string())
    }

    async fn stop(&self, _: &SlotName, _: bool) -> Result<Stopped, ProviderError> {
        Ok(Stopped::Seen)
    }

    /// It runs nothing, so that nobody may conclude anything from what it does not have.
    async fn list(&self) -> Result<Vec<Found>, ProviderError> {
        Err(ProviderError::never("it runs nothing, and so has nothing to list"))
    }

    async fn inspect(&self, _slot: &SlotName) -> Result<Option<Found>, ProviderError> {
        Ok(None)
    }

    async fn delete(&self, _: &SlotName) -> Result<(), ProviderError> {
        Ok(())
    }
}

/// An empty database on a PostgreSQL, or an SQLite file in a folder that goes with it.
#[derive(Debug)]
pub struct Database {
    pub url: String,
    server: Option<String>,
}

impl Database {
    /// `server` is the URL of a database of a PostgreSQL on which this user may make another; `None` for SQLite.
    pub async fn make(server: Option<&str>) -> Done<Self> {
        let name = format!("greenroom_bench_{}", uuid::Uuid::new_v4().simple());
        let Some(server) = server else {
            let path = std::env::temp_dir().join(name);
            return Ok(Self { url: format!("sqlite:{}.db", path.display()), server: None });
        };
        let mut connection = sqlx::PgConnection::connect(server).await?;
        execute(&mut connection, format!("CREATE DATABASE {name}")).await?;
        let (base, _) = server.rsplit_once('/').ok_or("the URL names no database")?;
        Ok(Self { url: format!("{base}/{name}"), server: Some(server.to_owned()) })
    }

    /// Runs statements past the store: for what only a measurement does.
    pub async fn execute(&self, sql: impl Into<String>) -> Done {
        let mut connection = sqlx::PgConnection::connect(&self.url).await?;
        execute(&mut connection, sql.into()).await
    }

    pub async fn remove(self) -> Done {
        match &self.server {
            Some(server) => {
                let mut connection = sqlx::PgConnection::connect(server).await?;
                let name = self.url.rsplit('/').next().unwrap_or_default();
                execute(&mut connection, format!("DROP DATABASE {name} WITH (FORCE)")).await
            }
            None => {
                let path = self.url.trim_start_matches("sqlite:").to_owned();
                for end in ["", "-wal", "-shm", "-lock"] {
                    let _ = std::fs::remove_file(format!("{path}{end}"));
                }
                Ok(())
            }
        }
    }
}

async fn execute(connection: &mut sqlx::PgConnection, sql: String) -> Done {
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

/// A server that serves until it is stopped.
#[derive(Debug)]
pub struct House {
    pub address: SocketAddr,
    pub app: App,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), ServerError>>,
}

impl House {
    /// Starts with these pools; `providers` replaces those that are configured.
    pub async fn start(database: &Database, pools: Vec<PoolConfig>, providers: Option<Providers>) -> Done<Self> {
        Self::start_at("127.0.0.1", database, pools, providers).await
    }

    /// The same at another address of this machine.
    pub async fn start_at(
        address: &str,
        database: &Database,
        pools: Vec<PoolConfig>,
        providers: Option<Providers>,
    ) -> Done<Self> {
        let config = &Config {
            listen: format!("{address}:0"),
            public_url: None,
            database: database.url.clone().into(),
            redis: None,
            bots_redis: None,
            admin_token: None,
            limits: crate::config::LimitsConfig::default(),
            deadlines: Deadlines::default(),
            max_concurrent_deployments: 4,
            pull_stall: Duration::from_mins(2),
            max_recovery_attempts: 3,
            pools,
            has_own_pools: true,
            file: None,
        };
        let server = match providers {
            Some(providers) => Server::start_on(config, |_, _, _| providers, |_, _| Ok(())).await?,
            None => Server::start(config, |_, _| Ok(())).await?,
        };
        let (address, app) = (server.address, server.app.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let mut stopped = Some(stopped);
        let running = tokio::spawn(server.run(async move || {
            if let Some(stopped) = stopped.take() {
                let _ = stopped.await;
            } else {
                std::future::pending::<()>().await;
            }
        }));
        Ok(Self { address, app, stop: Some(stop), running })
    }

    /// Fills a pool with slots in which an agent is taken to wait, of each of these kinds as many.
    pub async fn furnish(&self, name: &str, slots: i64, kinds: &[Attributes]) -> Done {
        let now = self.app.clock.now();
        let rows: Vec<SlotRow> = (1..=slots)
            .zip(kinds.iter().cycle())
            .map(|(number, kind)| SlotRow {
                name: SlotName::new(name, number),
                pool: name.to_owned(),
                number,
                status: SlotStatus::Idle,
                status_since: now,
                bot_id: None,
                incarnation: uuid::Uuid::new_v4(),
                generation: 1,
                token_number: 0,
                agent: None,
                bots_since_fresh: 0,
                provider_ref: Some(name.to_owned()),
                description: slot::idle(None),
                last_used_at: None,
                error_message: None,
                recovery_attempts: 0,
                created_at: now,
                attributes: kind.clone(),
                threshold: None,
            })
            .collect();
        let mut tx = self.app.store.begin().await?;
        for rows in rows.chunks(1_000) {
            tx.write(&Batch { new_slots: rows.to_vec(), ..Batch::default() }, now).await?;
        }
        let mut pool = tx.hold_pool(name).await?.ok_or("the pool is not there")?;
        (pool.slots, pool.kinds) = (slots, kinds.to_vec());
        tx.write(&Batch { pools: vec![pool], ..Batch::default() }, now).await?;
        Ok(tx.commit().await?)
    }

    /// A user with room for so many bots.
    pub async fn user(&self, max_concurrent_bots: i64) -> Done<(UserId, String)> {
        let new = NewUser {
            email: "bench@localhost".to_owned(),
            name: "Bench".to_owned(),
            image_url: None,
            max_concurrent_bots,
            data: Map::new(),
        };
        let (user, key) = self.app.admission.create_user(new).await?;
        Ok((user.id, key.reveal().to_owned()))
    }

    pub async fn stop(mut self) -> Done {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        Ok(self.running.await??)
    }
}

/// One provider for one pool.
pub fn providers(pool: &str, provider: impl Provider + 'static) -> Providers {
    let provider: Arc<dyn Provider> = Arc::new(provider);
    Arc::new(BTreeMap::from([(pool.to_owned(), provider)]))
}
