package avlstar

// Upper is that of Version: where p lacks a node, there is a stub.
func (p *Partial) Upper(depth int) ([]byte, error) { return p.v.Upper(depth) }

// HeldBytes is that of Version.
func (p *Partial) HeldBytes() uint64 { return p.v.HeldBytes() }

// Memory is that of Version.
func (p *Partial) Memory() MemoryStats { return p.v.Memory() }
