package avlstar

import (
	"bytes"
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Pages are read in parallel, because each read waits for the disk. Apply and Replay read the pages
// on the paths to their changes (bring). A caller that reads many keys in turn reads the pages of
// the next keys (ReadAhead).

// maxBrought limits the memory of the pages that are read before a block is applied, in bytes of
// leaf records.
const maxBrought = 16 << 20

// minAhead is the least number of bytes that ReadAhead reads at once, even if the tree's budget is
// small.
const minAhead = 256 << 10

// maxAhead is the greatest number of bytes that ReadAhead reads at once, even if the tree's budget
// is not limited.
const maxAhead = 64 << 20

// ReadAhead reads the pages on the paths to keys in parallel, up to a quarter of the tree's budget
// and to maxAhead bytes, and keeps them until the next call. Meanwhile every reader of the tree
// finds them without waiting for the disk. It stops iterating over keys when it has read enough, so
// the caller knows where to continue. Keys may be in any order, such as the order of execution. It
// returns false, without reading a key, if the tree keeps all pages in memory.
//
// A page that cannot be read is skipped: a reader that needs it gets the error.
func (v *Version) ReadAhead(keys iter.Seq[[]byte]) bool {
	t := v.tree
	if !v.partial || t.paging == nil {
		return false
	}
	v.inUse()
	defer runtime.KeepAlive(v)
	wanted := v.pagesTo(keys, min(max(uint64(max(t.paging.Budget(), 0))/4, minAhead), maxAhead))
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

// ForgetAhead frees the pages that ReadAhead keeps.
func (v *Version) ForgetAhead() {
	if p := v.tree.paging; p != nil {
		p.ahead.Store(nil)
	}
}

// pagesTo returns the pages on the paths to keys that are not in memory, each once. It stops when
// they exceed most bytes.
func (v *Version) pagesTo(keys iter.Seq[[]byte], most uint64) (wanted []Subtree) {
	var (
		sum  uint64
		last Subtree // the page found last: consecutive keys often lie in one page
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
		if n != 0 || s.Stub == emptyStub || !v.isAway(s) {
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

// fetchAll reads pages in parallel and returns the result of use for each. The result is the zero
// value if the page cannot be read; after an error, other results may be zero values too.
func fetchAll[T any](t *tree, wanted []Subtree, use func(*Page) T) []T {
	var (
		made = make([]T, len(wanted))
		wg   sync.WaitGroup
		next atomic.Int64
	)
	for range min(4*runtime.GOMAXPROCS(0), len(wanted)) { // the goroutines wait for the disk
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

// bring reads the pages that keys lead to, before the walk needs them one after another. It ignores
// errors: the walk will meet them again. The gate is open meanwhile, because encoders need not wait
// while Apply or Replay waits for the disk.
func (t *tree) bring(v *Version, keys iter.Seq[[]byte], g *making) {
	p := t.paging
	if p == nil || !v.partial {
		return
	}
	wanted := v.pagesTo(keys, maxBrought)
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
