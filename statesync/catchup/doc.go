// Package catchup brings a node to the end of the chain with blocks from its peers, over the
// transport and without CometBFT. It decides how a node catches up, requests blocks, and serves
// requests for blocks. Executing a block is up to the given Chain.
//
//	peers' claims ──► Decide ──► state_sync: fetch a state first (statesync/restore)
//	                    │    └─► normal: CometBFT's consensus; its block sync fetches the last blocks
//	                    ▼ catch_up
//	          window: heights in order ──► hedge.Search: blocks [h, h+n) ──► decoded, linked
//	                    ▲                                                        │ in order
//	                    └── asked again ◄──── a wrong signature: banned ◄─── Chain.Apply
//
// Each answer contains the commit of its last block, so it can be verified without later blocks: a
// peer that sent blocks that the validators did not sign is solely to blame. The names of the
// states are those of BoR (Huang et al. 2019, section 4.4).
package catchup
