// Package catchup brings a node to the end of the chain by blocks of its peers, over the transport,
// while there is no CometBFT. It decides what a node has to do, asks for blocks, and answers those
// who ask; what a block does is the business of the Chain that it is given.
//
//	peers' claims ──► Decide ──► last_irr_catch_up: the state first (statesync/fastsync)
//	                    │    └─► normal: CometBFT's consensus, and the last blocks by its block sync
//	                    ▼ catch_up
//	          window: heights in order ──► hedge.Search: blocks [h, h+n) ──► decoded, linked
//	                    ▲                                                        │ in order
//	                    └── asked elsewhere ◄── a wrong signature: banned ◄── Chain.Apply
//
// Each answer has the commit of its last block, so that it can be judged without the blocks after
// it: whoever sent something that the validators did not sign is alone to blame. The names of the
// states are those of BoR (Huang et al. 2019, section 4.4).
package catchup
