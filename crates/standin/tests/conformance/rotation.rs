//! Rotation.
