//! What threads share: quiescence, and a lock biased towards writers.

pub(crate) mod writer_bias;

pub(crate) mod domains;

pub(crate) mod quiescence;
