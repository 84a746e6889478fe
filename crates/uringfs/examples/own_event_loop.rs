//! A reactor inside your own event loop: a server for one image. Its loop is an epoll that watches the client and the
//! reactor's descriptor.
//!
//! A request is a block number of eight bytes. The reply is that number and the sum of the block's bytes.
//!
//!     cargo run --example own_event_loop

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use uringfs::device::Access;
use uringfs::{Buffer, File, Reactor, ReactorOptions, Token, Tokens};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;

// The sources of events in the loop.
const CLIENT: u64 = 0;
const REACTOR: u64 = 1;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("image");
    uringfs::create_image(&path, BLOCKS * BLOCK as u64)?;
    let file = File::open(&path, Access::ReadWrite)?;
    let (server, client) = UnixStream::pair()?;
    let client = std::thread::spawn(move || request_every_block(client));
    serve(&file, server)?;
    let replies = client.join().expect("the client does not panic")?;
    println!("{replies} blocks requested and answered");
    Ok(())
}

fn serve(file: &File, mut client: UnixStream) -> Result<(), Box<dyn Error>> {
    let reactor = Reactor::new(ReactorOptions::default())?;
    // Each block holds its own number, so that the client can check the replies.
    reactor.block_on(async {
        for block in 0..BLOCKS {
            let bytes = Buffer::copy_of(&[block as u8; BLOCK]);
            file.write_at(bytes, block * BLOCK as u64).await.0?;
        }
        file.sync_data().await
    })?;

    client.set_nonblocking(true)?;
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &client, EventData::new_u64(CLIENT), EventFlags::IN)?;
    epoll::add(&epoll, reactor.fd()?, EventData::new_u64(REACTOR), EventFlags::IN)?;

    let mut events = Vec::with_capacity(8);
    let mut completed = Vec::new();
    let (mut open, mut in_flight) = (true, 0);
    while open || in_flight > 0 {
        // Before the loop sleeps, the reactor takes a turn: it submits the started reads and collects completions. Its
        // descriptor is readable when there is more to do.
        reactor.turn()?;
        reactor.reap(0, None, &mut completed)?;
        for completion in completed.drain(..) {
            in_flight -= 1;
            completion.result()?;
            let block = completion.token().get();
            let sum = completion.into_buffer().iter().map(|byte| u64::from(*byte)).sum::<u64>();
            client.write_all(&[block.to_le_bytes(), sum.to_le_bytes()].concat())?;
        }
        if !open && in_flight == 0 {
            break;
        }
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        if events.iter().any(|event| event.data.u64() == CLIENT) {
            let mut requests = [0; 8 * 32];
            match client.read(&mut requests) {
                Ok(0) => {
                    open = false;
                    epoll::delete(&epoll, &client)?;
                }
                // The client sends whole numbers, and a local socket does not split them here.
                Ok(length) => {
                    for number in requests[..length].chunks_exact(8) {
                        let block = u64::from_le_bytes(number.try_into()?);
                        let buffer = Buffer::zeroed(BLOCK);
                        reactor.read_at(file, buffer, block * BLOCK as u64, Token::new(block))?;
                        in_flight += 1;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Requests each block once, and checks the replies.
fn request_every_block(mut server: UnixStream) -> std::io::Result<u64> {
    let mut replies = 0;
    for block in 0..BLOCKS {
        server.write_all(&block.to_le_bytes())?;
    }
    server.shutdown(std::net::Shutdown::Write)?;
    let mut reply = [0; 16];
    while server.read_exact(&mut reply).is_ok() {
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (block, sum) = (number(&reply[..8]), number(&reply[8..]));
        assert_eq!(sum, block * BLOCK as u64, "block {block}");
        replies += 1;
    }
    assert_eq!(replies, BLOCKS);
    Ok(replies)
}
