// Package config reads and checks all that a node is told: config.toml, app.toml, the genesis file
// and the keys of a home folder, and knows where its data lie.
//
//	flags ──► STARLINGD_… variables ──► config/config.toml, config/app.toml ──► defaults
//	                                          │ the first of them that names a setting counts
//	                                          │ Load: unknown names and values of the wrong kind are refused by name
//	                                          ▼
//	                                        Config ── CheckLimits, CheckAddresses: what a node could not run with is refused
//	config/genesis.json ── LoadGenesis ──► genesis document: fields, app_state, limits
//	config/node_key.json, config/priv_validator_key.json, data/priv_validator_state.json ── LoadNodeKey, LoadValidator
//
// It starts nothing, and writes nothing but app.toml for a new home.
package config
