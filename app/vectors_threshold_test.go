package app

import (
	"github.com/stretchr/testify/require"

	"github.com/starling-kv/starling/tx"
)

// propose returns a proposal by name with its next nonce, and the operation that approves it.
func (s *chainScript) propose(name string, expires uint64, operations ...tx.Operation) (raw []byte, approval tx.Operation) {
	operation, err := tx.NewPropose(expires, operations...)
	require.NoError(s.t, err)
	record := tx.Proposal{Nonce: s.nonces[name], Propose: *operation.GetPropose()}
	digest, err := record.Digest(s.file.ChainID, account(name))
	require.NoError(s.t, err)
	return s.by(name, operation), tx.NewApprove(account(name), digest)
}

func togetherChain(s *chainScript) {
	admin := func(name string) tx.Operation { return adminOp(account(name), false) }
	gone := func(name string) tx.Operation { return adminOp(account(name), true) }
	grant := func(prefix string) tx.Operation { return grantOp(account("bob"), prefix, 0) }

	first, yes := s.propose("root", 3, grant("b"), validatorOp(account("v3"), 1), grant("b"))
	s.block("nobody acts alone; only an admin proposes or approves; the right comes before the threshold", "0 15 15 15 15 15 15 10 10", first,
		s.by("root", grant("b")), s.by("root", revokeOp(account("alice"), "a")), s.by("root", gone("ann")), s.by("root", validatorOp(account("v3"), 1)),
		s.by("root", tx.NewScheduleUpgrade(2, 9, "")), s.by("root", tx.NewSetThreshold(1)), s.by("alice", grant("b")), s.by("alice", yes))
	s.block("nobody counts twice; another digest; the second approval executes, and there is no third", "0 11 11 0 11",
		s.by("root", yes), s.by("ann", tx.NewApprove(account("carol"), [32]byte{})), s.by("ann", tx.NewApprove(account("root"), [32]byte{})),
		s.by("ann", yes), s.by("carol", yes))

	again, yes := s.propose("root", 4, grant("c"))
	s.block("the last block of a proposal", "0 11", again, s.by("ann", tx.NewApprove(account("root"), [32]byte{1})))
	late, yesLate := s.propose("ann", 4, grant("d"))
	s.block("from this block to 1,000,000 later", "0 0 11 11 0", s.by("carol", yes), late, mustPropose(s, "root", 3, grant("d")),
		mustPropose(s, "root", 1_000_005, grant("d")), mustPropose(s, "root", 1_000_004, grant("d")))
	s.block("expired", "11", s.by("root", yesLate))

	shrink, yesShrink := s.propose("ann", 99, gone("root"), gone("carol"))
	s.block("too few would be left: all is undone, the approval as well", "0 11", shrink, s.by("carol", yesShrink))
	lower, yesLower := s.propose("carol", 99, tx.NewSetThreshold(1), gone("root"), gone("carol"), grant("e"))
	s.block("more than there are; lower first, and the proposer may go", "0 0 0", lower, s.by("ann", yesLower), s.by("ann", admin("root")))
	s.block("alone, a proposal is executed at once; with its own threshold from then on", "0 0 11 0",
		mustPropose(s, "ann", 99, grant("f"), tx.NewSetThreshold(2)), mustPropose(s, "ann", 99, tx.NewSetThreshold(3)),
		s.by("root", tx.NewApprove(account("ann"), [32]byte{})), s.by("alice", put("a", "1")))
}

func mustPropose(s *chainScript, name string, expires uint64, operations ...tx.Operation) []byte {
	raw, _ := s.propose(name, expires, operations...)
	return raw
}
