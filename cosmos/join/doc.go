// Package join creates the database of an application on cosmos/iavl from the states that peers
// serve. No peer is trusted.
//
//	Headers ──app hash──▶ manifest ──images──▶ chunks ──▶ nodedb.Installer ──▶ the state at H
//	          verifies               verify
//
// statesync/scheduler selects the peers. Slow peers are bypassed, Byzantine peers are banned, and
// peers without the height get no requests. Installed chunks are kept: Join resumes a killed one.
package join
