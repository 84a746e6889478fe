//! Which folio leaves next.
