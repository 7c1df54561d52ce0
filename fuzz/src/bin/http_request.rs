//! What does a client get out of the grant server?
#![cfg_attr(fuzzing, no_main)]

spanwire_fuzz::target!(http_request);
