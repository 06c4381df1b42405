package manifest

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

var (
	namePattern    = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$`)
	versionPattern = regexp.MustCompile(`^[\w./-]+$`)
)

// Check returns all errors of a manifest, joined.
func (m *Manifest) Check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	// the power of all validators, and of those that are Byzantine or start late
	var power, absent int64
	storage, lying := 0, 0
	for _, name := range m.Names() {
		n := m.Nodes[name]
		if !namePattern.MatchString(name) {
			wrong("node %q: a name has up to 32 of a to z, 0 to 9 and -", name)
		}
		switch n.Mode {
		case Validator:
			if n.Power < 1 {
				wrong("node %s: power %d, a validator has 1 or more", name, n.Power)
			}
			power += n.Power
			if n.Lie != "" || n.StartAt > 0 {
				absent += n.Power
			}
		case Full:
			if n.Power != 0 {
				wrong("node %s: only a validator has power", name)
			}
		case Storage:
			storage++
			if n.Lie != "" {
				lying++
			}
			if n.Power != 0 || n.StartAt != 0 || n.Paged || n.Sharded || n.Version != "" {
				wrong("node %s: a storage node starts at genesis, and has no other settings than lie and send_rate", name)
			}
		default:
			wrong("node %s: mode %q is not one of %s, %s, %s", name, n.Mode, Validator, Full, Storage)
		}
		if n.Sharded && (m.Shards == 0 || n.Paged || n.Lie != "" || n.Version != "" || n.Join == InBand || n.Join == Blocks) {
			wrong("node %s: sharded needs shards, excludes paged, lie and version, and joins over the transport only", name)
		}
		switch {
		case n.StartAt < 0:
			wrong("node %s: start_at %d is below 0", name, n.StartAt)
		case n.StartAt == 0 && n.Join != "":
			wrong("node %s: join needs start_at", name)
		case n.Join != "" && !slices.Contains([]Join{Transport, InBand, Blocks}, n.Join):
			wrong("node %s: join %q is not one of %s, %s, %s", name, n.Join, Transport, InBand, Blocks)
		}
		if n.Version != "" && !versionPattern.MatchString(n.Version) {
			wrong("node %s: version %q is neither a tag nor a commit", name, n.Version)
		}
		if !slices.Contains([]Network{"", LAN, WAN}, n.Network) {
			wrong("node %s: network %q is neither %s nor %s", name, n.Network, LAN, WAN)
		}
		if n.Network != "" && n.Version != "" {
			wrong("node %s: network is for nodes of the present program, version names another one", name)
		}
		if n.SendRate < 0 {
			wrong("node %s: send_rate %d is below 0", name, n.SendRate)
		}
	}
	if m.Shards > 0 && lying > 0 && storage-lying < m.Shards {
		wrong("%d of %d storage nodes are Byzantine: each of %d ranges needs an honest one", lying, storage, m.Shards)
	}
	if m.Shards < 0 || m.Shards > storage || m.Shards == 0 && storage > 0 {
		wrong("shards is %d and there are %d storage nodes: each range needs a storage node, and each storage node a range", m.Shards, storage)
	}
	switch {
	case power == 0:
		wrong("there is no validator")
	case 3*absent >= power:
		wrong("validators that are Byzantine or start late have %d of %d of the power: it must be less than a third", absent, power)
	}
	if m.ChunkBytes < 1 || m.ChunkBytes > 15_000_000 {
		wrong("chunk_bytes %d is not from 1 to 15,000,000", m.ChunkBytes)
	}
	if m.SnapshotInterval < 1 {
		wrong("snapshot_interval %d is below 1", m.SnapshotInterval)
	}
	if m.BlockPause < 0 || m.Limit <= 0 {
		wrong("block_pause must be 0 or more, limit more than 0")
	}
	if l := m.Load; l.InitialKeys < 0 || l.ValueBytes < 1 || l.Clients < 0 || l.Keys < 1 {
		wrong("load: initial_keys and clients must be 0 or more, value_bytes and keys 1 or more")
	}
	if m.Link.Delay < 0 || m.Link.Bandwidth < 0 {
		wrong("link: delay and bandwidth must be 0 or more")
	}
	upgrades := 0
	for i, step := range m.Steps {
		if step.Do == UpgradeApp {
			if upgrades++; upgrades > 1 {
				wrong("step %d (%s): there is one newer app version only", i+1, step.Do)
			}
		}
		if err := m.checkStep(step); err != nil {
			wrong("step %d (%s): %w", i+1, step.Do, err)
		}
		if err := m.checkRanges(i); err != nil {
			wrong("step %d (%s): %w", i+1, step.Do, err)
		}
		if name := m.notThere(i); name != "" {
			wrong("step %d (%s): %s joins in a later step (%s), or for the second time", i+1, step.Do, name, KillMidSync)
		}
	}
	return errors.Join(errs...)
}

// notThere returns the name of a node of the step that does not run yet, because a later step
// starts it, or "".
func (m *Manifest) notThere(step int) string {
	for _, later := range m.Steps[step+1:] {
		if later.Do != KillMidSync {
			continue
		}
		for _, name := range later.Nodes {
			if slices.Contains(m.Steps[step].Nodes, name) {
				return name
			}
		}
	}
	return ""
}

// checkRanges returns an error if a step cannot change the ranges.
func (m *Manifest) checkRanges(i int) error {
	s := m.Steps[i]
	if s.Do != SplitRange && s.Do != MoveRange || len(s.Nodes) == 0 {
		return nil
	}
	of := m.RangeOf(s.Nodes[0])
	before := func(kind Kind) bool {
		return slices.ContainsFunc(m.Steps[:i], func(o Step) bool { return o.Do == kind && len(o.Nodes) > 0 && m.RangeOf(o.Nodes[0]) == of })
	}
	sharded := func(n Node) bool { return n.Sharded }
	switch {
	case of < 0 || s.Do == MoveRange && (len(s.Nodes) != 2 || m.RangeOf(s.Nodes[1]) < 0) || s.Do == SplitRange && len(s.Nodes) != 1:
		return errors.New("a split names one storage node, a move two")
	case before(s.Do):
		return errors.New("the range has been changed before")
	case s.Do == MoveRange && (!before(SplitRange) || m.RangeOf(s.Nodes[1]) == of):
		return errors.New("a range is divided first, and then moves to a node that does not have it")
	case !slices.ContainsFunc(slices.Collect(maps.Values(m.Nodes)), sharded):
		return errors.New("there is no sharded node")
	}
	return nil
}

// checkStep returns the first error of a step.
func (m *Manifest) checkStep(s Step) error {
	if !slices.Contains(Kinds(), s.Do) {
		return fmt.Errorf("do is not one of %v", Kinds())
	}
	if ofAll := s.Do == Wait || s.Do == UpgradeApp; !ofAll && len(s.Nodes) == 0 {
		return errors.New("nodes is empty")
	} else if ofAll && len(s.Nodes) > 0 {
		return errors.New("nodes has no meaning here")
	}
	for i, name := range s.Nodes {
		n, known := m.Nodes[name]
		switch {
		case !known:
			return fmt.Errorf("there is no node %q", name)
		case slices.Contains(s.Nodes[:i], name):
			return fmt.Errorf("%s is named twice", name)
		case s.Do == KillMidSync && (n.StartAt == 0 || n.Join != Transport || n.Sharded):
			return fmt.Errorf("%s does not join by a snapshot over the transport", name)
		case s.Do == LoseDisk && n.Mode != Storage:
			return fmt.Errorf("%s is not a storage node", name)
		case s.Do == DeleteSnapshot && (n.Mode == Storage || n.Sharded):
			return fmt.Errorf("%s stores no snapshots", name)
		case s.Do == Upgrade && n.Version == "":
			return fmt.Errorf("%s has no version to begin with", name)
		}
	}
	lasts := slices.Contains([]Kind{Pause, Disconnect, Partition, Bandwidth, Delay, Wait}, s.Do)
	switch {
	case lasts && s.For <= 0:
		return errors.New("for must say how long")
	case !lasts && s.For != 0 && (s.Do != Kill || s.For < 0):
		return errors.New("for has no meaning here")
	case (s.Do == Bandwidth) != (s.Rate > 0):
		return errors.New("rate belongs to bandwidth, and is above 0 there")
	case (s.Do == Delay) != (s.Delay > 0):
		return errors.New("delay belongs to the step delay, and is above 0 there")
	}
	return nil
}
