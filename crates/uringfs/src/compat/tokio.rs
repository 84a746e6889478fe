//! The traits of tokio.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::compat::async_file::AsyncFile;

impl AsyncRead for AsyncFile {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(self.get_mut().poll_read_into(context, into.initialize_unfilled()))?;
        into.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AsyncFile {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_from(context, from)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flushed(context)
    }
}

impl AsyncSeek for AsyncFile {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.get_mut().seek = Some(to);
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let file = self.get_mut();
        // Without a seek it is called before one begins, and returns the position.
        let to = file.seek.unwrap_or(SeekFrom::Current(0));
        let position = ready!(file.poll_seek_to(context, to));
        file.seek = None;
        Poll::Ready(position)
    }
}
