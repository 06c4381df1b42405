// Package config reads and checks a node's configuration: config.toml, app.toml, the genesis file
// and the keys of a home folder. It also defines the folders of the node's data.
//
//	flags ──► STARLINGD_… variables ──► config/config.toml, config/app.toml ──► defaults
//	                                          │ the first that sets a value wins
//	                                          │ Load: unknown names and values of the wrong type are errors
//	                                          ▼
//	                                        Config ── CheckLimits, CheckAddresses: refuse settings with which a node cannot run
//	config/genesis.json ── LoadGenesis ──► genesis document: fields, app_state, limits
//	config/node_key.json, config/priv_validator_key.json, data/priv_validator_state.json ── LoadNodeKey, LoadValidator
//
// It starts nothing, and the only file that it writes is app.toml for a new home.
package config
