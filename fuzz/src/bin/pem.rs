//! What is believed of certificates and keys?
#![cfg_attr(fuzzing, no_main)]

spanwire_fuzz::target!(pem);
