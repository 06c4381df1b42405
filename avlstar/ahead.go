package avlstar

import (
	"bytes"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Who needs many pages reads them together, because each waits for the disk: Apply those on the way
// to its changes (bring), and who reads many keys one after another those of the next ones
// (ReadAhead).

// maxBrought limits the memory of the pages that are read before a block is made, in bytes of leaf
// records.
const maxBrought = 16 << 20

// minAhead is the least number of bytes that ReadAhead reads at once, however little memory the
// tree is to take.
const minAhead = 256 << 10

// ReadAhead reads the pages on the way to keys in parallel, as many as a quarter of the tree's
// budget holds, and keeps them until the next call: every reader of the tree finds them without
// waiting for the disk. It stops to ask for keys when it has enough, so the caller knows how far it
// came, and calls again there. The order of keys does not matter, so they may be those of an
// execution. It reports whether a page can be missing at all: if not, it asks for no key.
//
// A page that cannot be read is left out: whoever needs it meets the error.
func (v *Version) ReadAhead(keys iter.Seq[[]byte]) bool {
	t := v.tree
	if !v.partial || t.paging == nil {
		return false
	}
	v.inUse()
	defer runtime.KeepAlive(v)
	wanted := v.pagesTo(keys, max(uint64(max(t.paging.Budget(), 0))/4, minAhead))
	slices.SortFunc(wanted, func(a, b Subtree) int { return bytes.Compare(a.First, b.First) })
	pages := make(map[Hash]*Page, len(wanted))
	for i, page := range fetchAll(t, wanted, (*Page).Compact) {
		if page != nil {
			pages[wanted[i].Hash] = page
		}
	}
	t.paging.ahead.Store(&pages)
	return true
}

// ForgetAhead frees what ReadAhead keeps.
func (v *Version) ForgetAhead() {
	if p := v.tree.paging; p != nil {
		p.ahead.Store(nil)
	}
}

// pagesTo returns the pages on the way to keys that are not in memory, each once. It stops when
// they take more than most bytes.
func (v *Version) pagesTo(keys iter.Seq[[]byte], most uint64) (wanted []Subtree) {
	var (
		sum  uint64
		last Subtree // found last: keys that follow each other often lie in one page
		seen = make(map[Hash]struct{})
	)
	for key := range keys {
		if last.Stub != (Stub{}) && bytes.Compare(key, last.First) >= 0 && (last.After == nil || bytes.Compare(key, last.After) < 0) {
			continue
		}
		if v.find(key) != 0 {
			continue
		}
		s, n := v.locate(key, false)
		if n != 0 || s.Stub == emptyStub {
			continue
		}
		last = s
		if _, known := seen[s.Hash]; known {
			continue
		}
		seen[s.Hash] = struct{}{}
		wanted = append(wanted, s)
		if sum += s.Bytes; sum > most {
			break
		}
	}
	return wanted
}

// fetchAll reads pages in parallel and returns what use makes of each: the zero value where one
// cannot be read. After an error the others may be missing too.
func fetchAll[T any](t *tree, wanted []Subtree, use func(*Page) T) []T {
	var (
		made = make([]T, len(wanted))
		wg   sync.WaitGroup
		next atomic.Int64
	)
	for range min(4*runtime.GOMAXPROCS(0), len(wanted)) { // they wait for the disk
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(wanted); i = int(next.Add(1)) - 1 {
				page, err := t.fetchPage(wanted[i])
				if err != nil {
					return
				}
				made[i] = use(page)
			}
		})
	}
	wg.Wait()
	return made
}

// bring reads the pages to which ops lead before the walk needs them one after another. It ignores
// errors: the walk will meet them again. Encoders need not wait for the disk, so the gate is open
// meanwhile.
func (t *tree) bring(v *Version, ops []op, changes []Change, g *making) {
	p := t.paging
	if p == nil || !v.partial {
		return
	}
	wanted := v.pagesTo(func(yield func([]byte) bool) {
		for _, o := range ops {
			if !yield(changes[o.i].Key) {
				return
			}
		}
	}, maxBrought)
	if len(wanted) == 0 {
		return
	}
	g.end()
	defer g.again()
	p.runs = make(map[Hash]*run, len(wanted))
	for i, r := range fetchAll(t, wanted, (*Page).nodes) {
		if r != nil {
			p.runs[wanted[i].Hash] = r
		}
	}
	p.loaded.Add(uint64(len(p.runs)))
}
