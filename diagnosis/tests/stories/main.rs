//! What users get from the catalogue: messages recognised, pages that are current.

mod corpus;
mod doctor;
mod generated;
mod noise;
mod scene;
