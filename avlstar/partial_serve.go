package avlstar

// Upper does what Version.Upper does. A node that is missing in p becomes a stub.
func (p *Partial) Upper(depth int) ([]byte, error) { return p.v.Upper(depth) }

// HeldBytes does what Version.HeldBytes does.
func (p *Partial) HeldBytes() uint64 { return p.v.HeldBytes() }

// Memory does what Version.Memory does.
func (p *Partial) Memory() MemoryStats { return p.v.Memory() }
