package peers

// Bounds of the memory of one entry, in bytes, with its share of maps and lists. Every text in them
// has a bound: IDs, addresses (protocol.DecodePeers), reasons (maxReason), status and parts
// (protocol.MaxStatusBytes, MaxPartsBytes).
const (
	banBytes     = 640
	addressBytes = 1280 // of a discovered node
	accountBytes = 384
	statusBytes  = 28 << 10 // of a connected node
)

// MaxBytes bounds the memory of what a Peers remembers about nodes that the operator has not named:
// bans, advertised addresses, charges for invalid answers, and claims of connected nodes. Each part
// has a limit of its own: the oldest ban is forgotten first, the address farthest from the
// operator, and the least charge. The peers of the operator are in none of them, except for their
// charges, so strangers never displace these peers.
const MaxBytes = maxBanned*banBytes + maxAddresses*addressBytes + 2*maxAccounts*accountBytes + maxConnections*statusBytes

// Bytes returns what Peers remembers now, counted as in MaxBytes. A nil Peers has nothing.
func (p *Peers) Bytes() int64 {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	strangers := 0
	for _, c := range p.mu.up {
		if !c.own {
			strangers++
		}
	}
	return int64(p.mu.banned.Len()*banBytes + p.mu.book.bytes() + strangers*statusBytes)
}

// bytes returns the size of the book.
func (b *book) bytes() int {
	return b.size*addressBytes + (len(b.advertisers)+len(b.hosts))*accountBytes
}
