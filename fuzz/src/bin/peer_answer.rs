//! What is taken over from another site?
#![cfg_attr(fuzzing, no_main)]

spanwire_fuzz::target!(peer_answer);
