// Package health decides whether a node is live and ready, from facts that the node collects.
//
//	node ──Facts──► Of ──► Report ──► GET /livez   200 or 503: does the process work?
//	                                  GET /readyz  200 or 503: does it follow the chain, and can it continue?
//
// A node is live if its supervisor need not restart it, and ready if clients may use it. A joining
// node is live but not ready. Of is pure; package node decides where the handlers are served.
package health
