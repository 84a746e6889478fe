//! A file server on tokio's multi-threaded runtime. Clients store files over TCP and fetch them. Background reactors run
//! the operations of files, so any thread may await them.
//!
//! A request is a line, `PUT NAME LENGTH` with the bytes after it, or `GET NAME`. The reply is a line, `OK LENGTH` with
//! the bytes of a `GET` after it, or `ERROR` with a message.
//!
//!     cargo run --example tokio_multi_thread

use std::error::Error;
use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uringfs::{AsyncVolume, BufferPool, FormatOptions, OpenOptions};

const CLIENTS: u64 = 64;
const FILE_BYTES: usize = 300_000;
/// Memory of all connections together: with more transfers at once, some wait for a buffer.
const BUFFERS: usize = 16;
const BUFFER_BYTES: usize = 128 << 10;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 4)]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = FormatOptions::new().size(256 << 20);
    let volume = AsyncVolume::create(folder.path().join("image"), &options).await?;
    let server = Server { volume, pool: BufferPool::new(BUFFER_BYTES, BUFFERS)? };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = watch::channel(());
    let serving = tokio::spawn(serve(listener, server, stopped));

    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(
            async move { store_and_fetch(TcpStream::connect(address).await?, number).await },
        );
    }
    let mut fetched = 0;
    while let Some(client) = clients.join_next().await {
        fetched += client??;
    }
    drop(stop);
    let connections = serving.await??;
    println!("{connections} connections stored and fetched {fetched} bytes each way");
    Ok(())
}

#[derive(Clone)]
struct Server {
    volume: AsyncVolume,
    pool: BufferPool,
}

/// Serves until `stopped` closes, then waits for the connections and makes all files durable.
async fn serve(
    listener: TcpListener,
    server: Server,
    mut stopped: watch::Receiver<()>,
) -> Result<u64> {
    let mut connections = JoinSet::new();
    let mut count = 0;
    loop {
        // `accept` is cancel-safe. No operation of a file stands in this `select!`, as dropping it would not stop it.
        let client = tokio::select! {
            client = listener.accept() => client?.0,
            _ = stopped.changed() => break,
        };
        count += 1;
        let server = server.clone();
        connections.spawn(async move {
            if let Err(error) = server.answer(client).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
    while connections.join_next().await.is_some() {}
    server.volume.sync().await?;
    Ok(count)
}

impl Server {
    /// Answers the requests of a connection.
    async fn answer(&self, client: TcpStream) -> Result<()> {
        let (from, mut to) = client.into_split();
        let mut from = BufReader::new(from);
        let mut line = String::new();
        while from.read_line(&mut line).await? > 0 {
            let words: Vec<_> = line.split_whitespace().collect();
            let reply = match words[..] {
                ["PUT", name, length] => self.put(name, length.parse()?, &mut from).await,
                ["GET", name] => self.get(name, &mut to).await,
                _ => return Err(format!("no request: {line:?}").into()),
            };
            match reply {
                Ok(Some(length)) => to.write_all(format!("OK {length}\n").as_bytes()).await?,
                Ok(None) => {}
                Err(error) => to.write_all(format!("ERROR {error}\n").as_bytes()).await?,
            }
            line.clear();
        }
        Ok(())
    }

    /// Stores the next `length` bytes of the client.
    async fn put(
        &self,
        name: &str,
        length: u64,
        from: &mut (impl AsyncReadExt + Unpin),
    ) -> Result<Option<u64>> {
        let options = OpenOptions::new().write(true).create(true).truncate(true);
        let file = self.volume.open_with(format!("/{name}"), options).await?;
        let mut buffer = self.pool.acquire().await;
        let mut offset = 0;
        while offset < length {
            let part = (length - offset).min(buffer.len() as u64) as usize;
            from.read_exact(&mut buffer[..part]).await?;
            let rest = buffer.split_off(part);
            let (written, part) = file.write_all_at(buffer, offset).await;
            written?;
            offset += part.len() as u64;
            buffer = part;
            buffer.join(rest).map_err(|_| io::Error::other("the parts are of one buffer"))?;
        }
        Ok(Some(offset))
    }

    /// Sends a file to the client. The reply is sent here.
    async fn get(&self, name: &str, to: &mut OwnedWriteHalf) -> Result<Option<u64>> {
        let file = self.volume.open_file(format!("/{name}")).await?;
        let length = file.len();
        to.write_all(format!("OK {length}\n").as_bytes()).await?;
        let mut buffer = self.pool.acquire().await;
        let mut offset = 0;
        while offset < length {
            let (read, returned) = file.read_at(buffer, offset).await;
            let bytes = read?.min((length - offset) as usize);
            if bytes == 0 {
                return Err("the file became shorter".into());
            }
            to.write_all(&returned[..bytes]).await?;
            (buffer, offset) = (returned, offset + bytes as u64);
        }
        Ok(None)
    }
}

/// A client: stores a file, fetches it, and compares. Returns its length.
async fn store_and_fetch(server: TcpStream, number: u64) -> Result<usize> {
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| (at as u64 / 3 + number) as u8).collect();
    let (from, mut to) = server.into_split();
    let mut from = BufReader::new(from);
    to.write_all(format!("PUT file-{number} {FILE_BYTES}\n").as_bytes()).await?;
    to.write_all(&bytes).await?;
    let ok = format!("OK {FILE_BYTES}\n");
    let mut line = String::new();
    from.read_line(&mut line).await?;
    assert_eq!(line, ok);
    to.write_all(format!("GET file-{number}\n").as_bytes()).await?;
    line.clear();
    from.read_line(&mut line).await?;
    assert_eq!(line, ok);
    let mut fetched = vec![0; FILE_BYTES];
    from.read_exact(&mut fetched).await?;
    assert!(fetched == bytes, "file {number} differs");
    Ok(FILE_BYTES)
}
