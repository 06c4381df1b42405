package storagebench

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/starling-kv/starling/bench/workload"
)

// distribution is how often each of n things is read. Ranks are scattered over the things, so that
// neighbours in rank are not neighbours in key or time.
type distribution string

const (
	distNormal distribution = "normal-random" // normal around the middle rank, sigma n/6
	distZipf80 distribution = "zipf-0.80"     // rank r is read in proportion to 1/r^0.80
	distZipf99 distribution = "zipf-0.99"     // in proportion to 1/r^0.99, YCSB's constant
)

var distributions = []distribution{distNormal, distZipf80, distZipf99}

// mix10 is the number of queries in ten that look up transactions; the others look up accounts.
type mix10 int

func (m mix10) String() string { return fmt.Sprintf("%d:%d", int(m), 10-int(m)) }

var mixes = []mix10{10, 7, 5, 3, 0}

// query looks up a transaction (height above 0) or an account.
type query struct {
	height, tx int
	account    uint32
}

// asker draws queries.
type asker struct {
	spec     Spec
	present  []uint32
	rng      *rand.Rand
	accounts func() int
	txs      func() int
}

func newAsker(s Spec, d *model, dist distribution, z *zipfs, round uint64) *asker {
	rng := random(s.Seed, 1<<60|round)
	return &asker{
		spec: s, present: d.Present, rng: rng,
		accounts: dist.ranks(rng, z, len(d.Present)),
		txs:      dist.ranks(rng, z, s.Blocks*s.Txs),
	}
}

func (a *asker) queries(n int, m mix10) []query {
	all := make([]query, n)
	for i := range all {
		if a.rng.IntN(10) < int(m) {
			tx := scatter(a.txs(), a.spec.Blocks*a.spec.Txs, 1)
			all[i] = query{height: 1 + tx/a.spec.Txs, tx: tx % a.spec.Txs}
		} else {
			all[i] = query{account: a.present[scatter(a.accounts(), len(a.present), 2)]}
		}
	}
	return all
}

func scatter(rank, n int, salt uint64) int {
	return int(workload.Mix(uint64(rank)<<8|salt) % uint64(n))
}

func (d distribution) ranks(rng *rand.Rand, z *zipfs, n int) func() int {
	switch d {
	case distZipf80:
		return z.ranks(rng, n, 0.80)
	case distZipf99:
		return z.ranks(rng, n, 0.99)
	}
	return func() int {
		for {
			if r := int((rng.NormFloat64()/6 + 0.5) * float64(n)); r >= 0 && r < n {
				return r
			}
		}
	}
}

// zipfs caches the sums that the draws need.
type zipfs struct{ zeta map[zipfKey]float64 }

type zipfKey struct {
	n     int
	theta float64
}

func (z *zipfs) sum(n int, theta float64) float64 {
	if z.zeta == nil {
		z.zeta = map[zipfKey]float64{}
	}
	if s, ok := z.zeta[zipfKey{n, theta}]; ok {
		return s
	}
	s := 0.0
	for i := 1; i <= n; i++ {
		s += math.Pow(float64(i), -theta)
	}
	z.zeta[zipfKey{n, theta}] = s
	return s
}

// ranks draws by the method of Gray et al. (Quickly Generating Billion-Record Synthetic Databases,
// SIGMOD 1994), as YCSB does.
func (z *zipfs) ranks(rng *rand.Rand, n int, theta float64) func() int {
	zeta, alpha := z.sum(n, theta), 1/(1-theta)
	eta := (1 - math.Pow(2/float64(n), 1-theta)) / (1 - z.sum(min(n, 2), theta)/zeta)
	return func() int {
		u := rng.Float64()
		switch uz := u * zeta; {
		case uz < 1:
			return 0
		case uz < 1+math.Pow(0.5, theta):
			return min(1, n-1)
		}
		return min(int(float64(n)*math.Pow(eta*u-eta+1, alpha)), n-1)
	}
}
