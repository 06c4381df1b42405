// Package sgc is the space-gaming cache of the ChainKV paper, rebuilt: two zones, state and blocks,
// compete for one budget of memory, and what each lately missed decides how it is divided. It holds
// decoded pages, as objects, and records, as copies of their bytes; it is lost at a restart.
//
//	               budget
//	├──────── state ───────┼─────── blocks ──────┤
//	  other ‖ lists            lists ‖ other          other: what the zone uses elsewhere, such as the tree in memory
//	              ▲  ──────►
//	              │  a miss in the ghosts of blocks moves the border this way, one of state the other way
//
//	one zone:
//	  Put ──► probation ──hit──► protected
//	              │ ◄──too large──── │
//	              ▼ evicted
//	           ghosts: only hash and size ──missed, Put again──► protected
//
// Keys and records lie in slots of fixed sizes, entries and ghosts in tables without pointers
// (store draws them). So an entry costs 37 bytes beside its key and value, a ghost 21 more, and the
// garbage collector looks at neither.
//
// It follows ChainKV (section 7.3: real and ghost lists per zone, ghost hits move the border, after
// ARC) and settles what the paper leaves open:
//   - Where the border rests. A ghost near the end of its list, as counted in evicted bytes, stands for a miss that this number of
//     bytes more would have avoided. Both zones look equally many bytes far behind their lists, and each such miss moves the border equally
//     far, whatever the sizes of the entries. So the border rests where a byte more would avoid as many misses in one zone as in
//     the other, which is where no fixed border would do better. (ARC's own step, the quotient of the ghosts' lengths, balances
//     recency against frequency in one list of equal pages; it says nothing about bytes. Cliffhanger, NSDI 2016, has this gradient.)
//   - How fast it moves. The step grows while the same zone misses again and again, as after a change of the load, and is small when both do.
//   - What a miss costs. One miss counts as one: in both zones it is a random read of a database on the same disk, and the sizes
//     kept here (up to an eighth of the budget) matter less for its time than the read itself.
//   - Scans. New entries pass through probation, a quarter of the lists, so that what is used once does not displace what is used again.
//     Half of the budget in ghosts per zone lets an entry that comes back later skip it.
//
// Everything depends on the order of calls only: there is no clock.
package sgc
