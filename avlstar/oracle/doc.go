// Package oracle compares the shape of our tree with that of cosmos/iavl, which decides where the
// AVL* paper leaves a choice.
//
//	random blocks ─┬─▶ avlstar.Version.Apply ──▶ Leaves ────────┐
//	               └─▶ iavl.MutableTree Set, Remove ──▶ Export ─┴─▶ equal: every key, every height
//
// It is a module of its own, so that iavl and its dependencies never become part of the node.
package oracle
