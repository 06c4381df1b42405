package clientbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/bench/harness"
	"github.com/starling-kv/starling/bench/network"
	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/node/config"
)

// LatencyOptions configure a run of latency.
type LatencyOptions struct {
	Rounds     int
	Seconds    int // for each operation of a round
	Workers    int // concurrent puts
	Validators int
	Keys       int
	Delay      time.Duration // one way, between the regions of the stores with a delay
	Starlingd  string
	CometBFT   string
	EtcdStore  string
}

// Flags adds the flags of latency.
func (o *LatencyOptions) Flags(f *harness.Flags) {
	f.Int(&o.Rounds, "rounds", 3, 1, 100, "number of rounds; each measures everything once")
	f.Int(&o.Seconds, "seconds", 10, 1, 3600, "duration of each measurement in a round, in seconds")
	f.Int(&o.Workers, "workers", 8, 1, 256, "number of concurrent clients' operations")
	f.Int(&o.Validators, "validators", 4, 4, 16, "number of validators: four at least, so that one may be dead")
	f.Int(&o.Keys, "keys", 2000, 1, 10_000_000, "number of keys written before the measurement")
	f.Time(&o.Delay, "delay", 80*time.Millisecond, 0, time.Second,
		"delay between regions, one way: each validator is in a region of its own (0: not measured)")
	f.Program(&o.Starlingd, "starlingd")
	f.Program(&o.CometBFT, "cometbft")
	f.Program(&o.EtcdStore, "etcdstore")
}

// hops is the number of ways between regions that a put takes at least: to the proposer, proposal,
// prevotes, precommits.
const hops = 4

// valueBytes is the length of a value.
const valueBytes = 128

// Names of the stores of latency.
const (
	nameStarlingWAN = "starling, wan"
	nameStarlingLAN = "starling, lan"
	nameStarlingRPC = "starling, lan, rpc"  // clients use RPC; those of the others use gRPC
	nameText        = "starling, lan, text" // with kvstore's unsigned transactions
	nameKVStore     = "kvstore, defaults"
	nameKVStoreLAN  = "kvstore, lan"

	nameStarlingFar    = "starling, wan, regions"
	nameStarlingFarLAN = "starling, lan, regions"
	nameKVStoreFar     = "kvstore, defaults, regions"
)

// latencyStore is a store that latency measures.
type latencyStore struct {
	name       string
	start      func(r *latencyRun, ctx context.Context, s latencyStore, dir string) (store, error)
	network    config.Network // settings of the nodes; "": the program's defaults
	far        bool           // the nodes are in regions of their own
	operations []string
}

// Names of the operations of latency, in addition to OpPut.
const (
	opPutShared  = "put, one key"      // puts that share a client, and so a sequence of nonces
	opNewest     = "newest"            // a proved read of the newest state, without other traffic
	opNewestBusy = "newest, with puts" // the same while other clients put
	opEventAfter = "event after put"   // from the end of a put until its event arrives
	opDead       = "put, one dead"     // a put while one of the validators is dead
	opPutLoad    = "put, 64 clients"
	opGroupLoad  = "put, 64 grouped"     // puts that share transactions (client.WithGroupCommit)
	opBatchLoad  = "32 puts, 64 clients" // in one transaction
)

// loadWorkers is the number of concurrent clients of the last three, and batchPuts of puts in a
// transaction.
const loadWorkers, batchPuts = 64, 32

// The operations of the stores, in the order of the table. opDead comes last: the validator stays
// dead.
var (
	allOps = []string{
		OpPut, opPutShared, opPutLoad, opGroupLoad, opBatchLoad, OpGet, opGetProved, OpRange, opNewest, opNewestBusy,
		opEventAfter, opDead,
	}
	wanOps   = []string{OpPut, opPutShared, opNewest, opNewestBusy, opEventAfter, opDead}
	etcdOps  = []string{OpPut, OpGet, OpRange}
	loadOps  = []string{OpPut, opPutLoad}
	puts     = []string{OpPut}
	textLoad = []string{opPutLoad}
	rpcOps   = []string{OpPut, opPutLoad, OpGet, opGetProved, OpRange}
)

var latencyStores = []latencyStore{
	{nameStarlingWAN, (*latencyRun).starling, config.WAN, false, wanOps},
	{nameStarlingLAN, (*latencyRun).starling, config.LAN, false, allOps},
	{nameStarlingRPC, (*latencyRun).starling, config.LAN, false, rpcOps},
	{nameKVStore, (*latencyRun).kvstore, "", false, puts},
	{nameText, (*latencyRun).text, config.LAN, false, textLoad},
	{nameKVStoreLAN, (*latencyRun).kvstore, config.LAN, false, loadOps},
	{nameEtcd, (*latencyRun).etcd, "", false, etcdOps},
	{nameStarlingFar, (*latencyRun).starling, config.WAN, true, puts},
	{nameStarlingFarLAN, (*latencyRun).starling, config.LAN, true, puts},
	{nameKVStoreFar, (*latencyRun).kvstore, "", true, puts},
}

// stores lists the stores of a run.
func (o *LatencyOptions) stores() []latencyStore {
	return slices.DeleteFunc(slices.Clone(latencyStores), func(s latencyStore) bool { return s.far && o.Delay == 0 })
}

// latencyRun is the state of a run.
type latencyRun struct {
	o        LatencyOptions
	dir      string
	progress *harness.Progress
	rounds   map[string]map[string][]Figures // by store, then by operation
	turns    int
	retries  []string // see turn
	fault    fault    // of the last validator

	starlingd, cometbft, etcdstore string // paths of the programs
}

// RunLatency measures how long writes and reads take. It reports to progress, and always stops its
// processes.
func RunLatency(ctx context.Context, o LatencyOptions, progress *harness.Progress) (result *LatencyResult, err error) {
	err = harness.InFolder(ctx, progress, func(dir string) error {
		r := &latencyRun{o: o, dir: dir, progress: progress, rounds: map[string]map[string][]Figures{}}
		if err := r.build(ctx); err != nil {
			return err
		}
		if r.etcdstore, err = buildEtcdStore(ctx, o.EtcdStore, progress); err != nil {
			return err
		}
		progress.Begin("latency", "stores", o.Rounds*len(o.stores()))
		err := harness.InTurns(o.Rounds, o.stores(), func(round int, s latencyStore) error {
			defer progress.Add(1)
			return r.turn(ctx, round, s)
		})
		if err == nil {
			result = r.result()
		}
		return err
	})
	return result, err
}

// build builds the programs of the networks.
func (r *latencyRun) build(ctx context.Context) (err error) {
	if r.starlingd, err = network.Starlingd(ctx, r.o.Starlingd, r.progress); err != nil {
		return err
	}
	r.cometbft, err = network.CometBFT(ctx, r.o.CometBFT, r.progress)
	return err
}

// turn measures all operations of a store.
func (r *latencyRun) turn(ctx context.Context, round int, s latencyStore) error {
	r.turns++
	t := turn{
		name: s.name, dir: filepath.Join(r.dir, fmt.Sprintf("turn-%d", r.turns)), operations: s.operations,
		seed: uint64(round), progress: r.progress, retries: &r.retries,
	}
	start := func(dir string) (store, error) { return s.start(r, ctx, s, dir) }
	figures, err := t.measure(ctx, start)
	if err != nil {
		return err
	}
	if r.rounds[s.name] == nil {
		r.rounds[s.name] = map[string][]Figures{}
	}
	for op, f := range figures {
		r.rounds[s.name][op] = append(r.rounds[s.name][op], f)
	}
	return nil
}

func (r *latencyRun) starling(ctx context.Context, s latencyStore, dir string) (store, error) {
	return startStarling(ctx, r.options(s), r.starlingd, dir)
}

func (r *latencyRun) etcd(ctx context.Context, s latencyStore, dir string) (store, error) {
	return startEtcd(ctx, r.options(s), r.etcdstore, dir)
}

// options returns those of a store of the benchmark client.
func (r *latencyRun) options(s latencyStore) Options {
	endpoint := endpointGRPC
	if s.name == nameStarlingRPC {
		endpoint = endpointRPC
	}
	return Options{
		common: common{Seconds: r.o.Seconds, Network: string(s.network), Endpoint: endpoint, delay: r.delay(s), fault: r.fault},
		Keys:   r.o.Keys, ValueBytes: valueBytes, RangeKeys: min(100, r.o.Keys), Workers: r.o.Workers, Validators: r.o.Validators, writers: max(r.o.Workers, loadWorkers),
	}
}

func (r *latencyRun) delay(s latencyStore) time.Duration {
	if s.far {
		return r.o.Delay
	}
	return 0
}

// newestBusy measures proved reads of the newest state by half of the workers while the others put.
func (s *starling) newestBusy(ctx context.Context, seed uint64) (Figures, error) {
	read, err := s.operation(ctx, opGetProvedNewest, 0)
	if err != nil {
		return Figures{}, err
	}
	putting, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range max(s.o.Workers/2, 1) {
		put, err := s.operation(ctx, OpPut, i)
		if err != nil {
			end()
			return Figures{}, err
		}
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(1000+i)))
			for putting.Err() == nil {
				_ = put(putting, random)
			}
		})
	}
	nanos, seconds, err := Repeat(ctx, slices.Repeat([]Operation{read}, max(s.o.Workers/2, 1)), seed, time.Duration(s.o.Seconds)*time.Second)
	end()
	all.Wait()
	return newFigures(nanos, seconds), err
}

// eventAfter measures the time from the end of a put until its event arrives; 0 if it is there
// first.
func (s *starling) eventAfter(ctx context.Context, seed uint64) (Figures, error) {
	var mu sync.Mutex
	var after []int64
	work := make([]Operation, s.o.Workers)
	for i := range work {
		k := fmt.Appendf(nil, keyPrefix+"after/%d", i)
		w, err := s.believer.Watch(ctx, nil, client.WatchKey(k))
		if err != nil {
			return Figures{}, err
		}
		work[i] = func(ctx context.Context, random *rand.Rand) error {
			value := NewValue(random, s.o.ValueBytes)
			known := make(chan time.Time, 1)
			put := make(chan error, 1)
			go func() {
				_, err := s.writers[i].Put(ctx, k, value)
				known <- time.Now()
				put <- err
			}()
			for {
				e, err := w.Next(ctx)
				if err != nil {
					return errors.Join(err, <-put)
				}
				if bytes.Equal(e.Value, value) {
					break
				}
			}
			seen := time.Now()
			err := <-put
			mu.Lock()
			defer mu.Unlock()
			after = append(after, max(0, int64(seen.Sub(<-known))))
			return err
		}
	}
	_, seconds, err := Repeat(ctx, work, seed, time.Duration(s.o.Seconds)*time.Second)
	return newFigures(after, seconds), err
}

// oneDead measures puts after a validator was killed, which stays dead.
func (s *starling) oneDead(ctx context.Context, seed uint64) (Figures, error) {
	s.net.Kill(s.net.Validators[len(s.net.Validators)-1])
	return s.run(ctx, OpPut, seed)
}
