// Package join makes the database of an application of a chain on cosmos/iavl from what peers have
// of it. None of them is trusted.
//
//	Headers ──app hash──▶ manifest ──images──▶ chunks ──▶ nodedb.Installer ──▶ the state at H
//	          proves                 prove
//
// Who is asked for what is decided by statesync/scheduler: peers that dawdle are passed, peers that
// lie are banned, peers that do not have the height are not asked. What was installed stays: a Join
// that was killed is resumed by the next one.
package join
