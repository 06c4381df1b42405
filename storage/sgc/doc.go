// Package sgc is the space-gaming cache of the ChainKV paper: two zones, state and blocks, compete
// for one memory budget, which is divided according to their recent misses. The cache contains
// decoded pages, as objects, and records, as copies of their bytes. It is empty after a restart.
//
//	               budget
//	├──────── state ───────┼─────── blocks ──────┤
//	  other ‖ lists            lists ‖ other          other: memory that the zone uses elsewhere, such as the tree
//	                       ▲
//	                   ◄── │ ──►   a ghost hit of blocks moves the border to the left, one of state to the right
//
//	one zone:
//	  Put ──► probation ──hit──► protected
//	              │ ◄──too large──── │
//	              ▼ evicted
//	           ghosts: only hash and size ──missed, Put again──► protected
//
// Keys and records are stored in slots of fixed sizes, entries and ghosts in tables without
// pointers (see the diagram of store). So an entry costs 37 bytes in addition to its key and value,
// a ghost 21 more, and the garbage collector scans neither.
//
// It follows ChainKV (section 7.3: real and ghost lists per zone, ghost hits move the border, after
// ARC) and decides what the paper leaves open:
//   - Where the border settles. The position of a ghost in its list, in evicted bytes, is the number
//     of additional bytes that would have avoided the miss. In both zones only ghosts within the same
//     number of bytes behind the list count, and each such miss moves the border by the same amount,
//     regardless of entry sizes. So the border settles where one more byte would avoid as many misses
//     in one zone as in the other, and no fixed border would be better. (ARC's own step, the quotient
//     of the ghosts' lengths, balances recency against frequency in one list of equal pages; it says
//     nothing about bytes. Cliffhanger, NSDI 2016, has this gradient.)
//   - How fast it moves. The step grows while the same zone misses repeatedly, as after a change of
//     the load, and is small when both zones miss.
//   - The cost of a miss. All misses count the same: in both zones a miss is a random read from a
//     database on the same disk, and the entry sizes kept here (up to an eighth of the budget) matter
//     less for its duration than the read itself.
//   - Scans. New entries pass through probation, a quarter of the lists, so that entries used once do
//     not displace entries used repeatedly. Ghosts of half of the budget per zone let an entry that
//     returns later skip probation.
//
// The behavior depends only on the order of calls: there is no clock.
package sgc
