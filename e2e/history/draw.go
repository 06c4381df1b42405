package history

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// drawer draws the transactions of one client.
type drawer struct {
	*Config
	random *rand.Rand
	values int // number of values written so far
}

// groupPart is part of the names of keys that one transaction writes together.
const groupPart = "group/"

func (c *Config) key(i int) string      { return fmt.Sprintf("%s%d", c.Prefix, i) }
func (c *Config) groupKey(i int) string { return fmt.Sprintf("%s%s%d", c.Prefix, groupPart, i) }

// counter returns the key of a number: add reads numbers only, and the other keys have texts.
func (c *Config) counter(i int) string { return fmt.Sprintf("%scount/%d", c.Prefix, i) }

// anyKey draws a key for readers: a key that is written, or one that never is.
func (c *Config) anyKey(random *rand.Rand, counters int) string {
	switch i := random.IntN(c.Keys + c.Group + counters + 1); {
	case i < c.Keys:
		return c.key(i)
	case i < c.Keys+c.Group:
		return c.groupKey(i - c.Keys)
	case i < c.Keys+c.Group+counters:
		return c.counter(i - c.Keys - c.Group)
	default:
		return c.Prefix + "absent"
	}
}

// groupShare makes one in groupShare transactions one with several keys, whose history is checked
// as a whole.
const groupShare = 6

// counterShare makes one in counterShare transactions one with a counter, if there are any.
const counterShare = 3

// transaction draws the operations of one transaction; seen returns the value that a
// compare-and-put may expect at a key.
func (d *drawer) transaction(process, counters int, seen func(key string) string) []Operation {
	if counters > 0 && d.random.IntN(counterShare) == 0 {
		return []Operation{d.count(d.counter(d.random.IntN(counters)))}
	}
	if d.Group < 2 || d.random.IntN(groupShare) > 0 {
		return []Operation{d.operation(process, d.key(d.random.IntN(d.Keys)), seen)}
	}
	if d.random.IntN(2) == 0 {
		return []Operation{d.txn(process, seen)}
	}
	var operations []Operation
	for _, i := range d.random.Perm(d.Group)[:2+d.random.IntN(d.Group-1)] {
		operations = append(operations, d.operation(process, d.groupKey(i), seen))
	}
	return operations
}

func (d *drawer) operation(process int, key string, seen func(key string) string) Operation {
	switch n := d.random.IntN(20); {
	case n < 6:
		return Operation{Kind: Read, Key: key}
	case n < 7:
		return Operation{Kind: Compare, Key: key, Expected: seen(key)}
	case n < 12:
		return Operation{Kind: Put, Key: key, Value: d.value(process)}
	case n < 18:
		return Operation{Kind: CompareAndPut, Key: key, Expected: seen(key), Value: d.value(process)}
	default:
		return Operation{Kind: Delete, Key: key}
	}
}

// count draws an operation on a counter: half of the adds have bounds, which the others often
// leave.
func (d *drawer) count(key string) Operation {
	const most, delta = 150, 100
	o := Operation{Kind: Add, Key: key, Delta: d.random.Int64N(2*delta+1) - delta, Least: math.MinInt64, Most: math.MaxInt64}
	switch n := d.random.IntN(10); {
	case n < 2:
		return Operation{Kind: Read, Key: key}
	case n < 3:
		return Operation{Kind: Delete, Key: key}
	case n < 7:
		o.Least, o.Most = 0, most
	}
	return o
}

// txn draws a txn over the group: conditions that often hold, and up to two operations in either
// branch.
func (d *drawer) txn(process int, seen func(key string) string) Operation {
	o := Operation{Kind: Txn}
	for range 1 + d.random.IntN(2) {
		key := d.groupKey(d.random.IntN(d.Group))
		c := Condition{Key: key, Value: seen(key)}
		if d.random.IntN(4) == 0 {
			c = Condition{Key: key, Present: true}
		}
		o.If = append(o.If, c)
	}
	for _, to := range []*[]Operation{&o.Then, &o.Else} {
		for range 1 + d.random.IntN(2) {
			*to = append(*to, d.inTxn(process))
		}
	}
	return o
}

func (d *drawer) inTxn(process int) Operation {
	key, all := d.groupKey(d.random.IntN(d.Group)), d.Prefix+groupPart
	switch n := d.random.IntN(10); {
	case n < 5:
		return Operation{Kind: Put, Key: key, Value: d.value(process)}
	case n < 6:
		return Operation{Kind: Delete, Key: key}
	case n < 7:
		return Operation{Kind: Read, Key: key}
	case n < 9:
		return Operation{Kind: ReadRange, Key: all, End: all + ":", Limit: 1 + d.random.IntN(d.Group)}
	default:
		return Operation{Kind: DeleteRange, Key: key, End: all + ":", Limit: 1}
	}
}

// value returns a unique value, so that a client that reads it has read this very write.
func (d *drawer) value(process int) string {
	d.values++
	name := fmt.Sprintf("p%d.%d", process, d.values)
	return name + strings.Repeat(valueFill, max(1, d.ValueBytes-len(name)))
}
