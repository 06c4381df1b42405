package app

import (
	"strings"

	"github.com/starling-kv/starling/tx"
)

func txnsChain(s *chainScript) {
	b := func(text string) []byte { return []byte(text) }
	list := func(start, end string, limit uint32) tx.Operation { return tx.NewReadRange(b(start), b(end), limit) }
	clear := func(start, end string, limit uint32) tx.Operation { return tx.NewDeleteRange(b(start), b(end), limit) }
	part := func(start, end string, limit uint32) tx.Operation { return tx.NewDeletePart(b(start), b(end), limit) }
	is := func(key, value string) tx.Compare { return tx.Compare{Key: b(key), Value: b(value)} }
	there := func(key string) tx.Compare { return tx.Compare{Key: b(key), Present: true} }
	compare := func(c tx.Compare) tx.Operation { return tx.Operation{Op: &tx.Operation_Compare{Compare: &c}} }
	all := func(operations ...tx.Operation) []tx.Operation { return operations }
	branch := func(c []tx.Compare, success, failure []tx.Operation) tx.Operation {
		return tx.NewTxn(c, success, failure)
	}

	s.block("compares: equal, absent, present; of any key, without a right", "0 0 0 7 7 7 7",
		s.by("alice", put("a1", "1"), put("a2", "2"), put("b1", "3"), put("c1", "4")),
		s.by("bob", compare(is("a1", "1")), compare(is("a9", "")), compare(there("a2"))), s.by("root", compare(there(string(AdminKey(account("root")))))),
		s.by("bob", compare(is("a1", "2"))), s.by("bob", compare(is("a1", ""))), s.by("bob", compare(there("a9"))), s.by("bob", compare(is("a9", "1"))))
	s.block("a compare sees what the block and the transaction did before it", "0 0 7",
		s.by("alice", put("a3", "x"), compare(is("a3", "x")), del("a3"), compare(is("a3", ""))), s.by("alice", put("a3", "y")),
		s.by("alice", put("a3", "z"), compare(is("a3", "y"))))
	s.block("a txn: all compares must hold; none always do", "0 0 0 0 0",
		s.by("alice", branch([]tx.Compare{is("a1", "1"), there("a2")}, all(put("t1", "s"), read("a1"), read("t1")), all(put("t2", "f")))),
		s.by("alice", branch([]tx.Compare{is("a1", "1"), is("a2", "")}, all(put("t3", "s")), all(put("t4", "f"), del("t1"), del("t9"), list("a", "b", 2)))),
		s.by("alice", branch(nil, all(put("t5", "s")), nil)), s.by("alice", branch([]tx.Compare{is("a1", "2")}, all(put("t6", "s")), nil)),
		s.by("alice", branch([]tx.Compare{is("a1", "2")}, nil, nil), branch(nil, nil, all(put("t7", "f")))))
	s.block("both branches need their rights, before the compares; reads and compares need none; the quota counts in the branch that runs", "5 5 5 0 8 0 5 0",
		s.by("bob", branch([]tx.Compare{is("a1", "1")}, all(put("b2", "1")), all(put("x", "1")))), s.by("bob", branch([]tx.Compare{is("a1", "1")}, all(put("x", "1")), all(put("b2", "1")))),
		s.by("bob", branch([]tx.Compare{is("a1", "1")}, all(read("a1")), all(clear("a", "b", 1)))), s.by("bob", branch([]tx.Compare{is("a1", "1")}, all(read("a1"), list("a", "", 1)), all(clear("b", "c", 1)))),
		s.by("bob", branch([]tx.Compare{is("a1", "1")}, all(put("b2", strings.Repeat("b", 60))), nil)), s.by("bob", branch([]tx.Compare{is("a1", "2")}, all(put("b2", strings.Repeat("b", 60))), all(put("b2", "1")))),
		// The right comes first, then the failure in the branch.
		s.by("bob", branch(nil, all(put("b2", strings.Repeat("b", 60))), all(del("x")))), s.by("bob", list("b", "c", 9)))
	s.block("a refusal in a branch undoes the transaction except for its nonce", "14 0",
		s.by("alice", put("u1", "1"), branch(nil, all(put("u2", "1"), clear("a", "b", 2)), nil)), s.by("alice", list("u", "v", 9), list("a", "b", 9)))
	s.block("ranges: in order, with what the block did; exactly the limit, and one more", "0 0 0 14 0 0",
		s.by("alice", list("a", "b", 3), list("a", "b", 2), list("a1", "a1\x00", 1), list("", "", 2), list("x", "", 5)),
		s.by("alice", del("a2"), put("a0", "0"), list("a", "b", 9)), s.by("alice", clear("a0", "a1", 1)), s.by("alice", clear("a", "b", 1)),
		s.by("alice", clear("a", "b", 2), list("a", "b", 9), clear("a", "b", 1)), s.by("alice", put("a1", "1"), put("a2", "2"), put("a4", "3"), part("a", "b", 2), part("a", "b", 2)))
	s.block("one grant covers all that the range may hold: the end of its prefix, no further; own or everyone's", "0 5 5 0 5 0 5 0 5 0 0",
		s.by("bob", clear("b5", "c", 1)), s.by("bob", clear("b", "c\x00", 1)), s.by("bob", clear("a\xff", "b2", 1)), s.by("bob", clear("b", "b\x00", 1)),
		s.by("bob", clear("b", "", 1)), s.by("bob", clear("b\xff", "c", 1)), s.by("bob", clear("b", "d", 1)), s.by("carol", clear("c5", "d", 1)), s.by("carol", clear("c", "", 1)),
		s.by("alice", clear("\x01", "\x02", 1)), s.by("alice", clear("\xff", "", 1)))
	s.block("the grant of a longer prefix is not enough, nor are two together", "0 5 5 0",
		s.by("root", revokeOp(account("bob"), "b"), grantOp(account("bob"), "b1", 0), grantOp(account("bob"), "b2", 0)),
		s.by("bob", clear("b1", "b3", 1)), s.by("bob", clear("b", "b2", 1)), s.by("bob", clear("b2", "b3", 5)))
	half := strings.Repeat("x", ReadBudgetBytes/2)
	big := func(key string) []byte { return s.by("alice", put(key, half)) }
	s.block("large values", "0 0 0 0 0", big("h1"), big("h2"), big("h3"), big("h4"), big("h5"))
	s.block("a range read ends before 1 MiB, except that it has at least one key; its keys count in the block's budget", "0 12 0 0",
		s.by("alice", list("h", "i", 9)), s.by("alice", list("h2", "i", 9)), s.by("alice", list("a", "b", 9)), s.by("alice", list("x", "y", 1)))
	s.block("a range that is deleted ends before 4 MiB; of it, the keys count as read", "14 0 0", s.by("alice", clear("h", "i", 9)), s.by("alice", part("h", "i", 9)), s.by("alice", clear("h", "i", 9)))
	empty := func(n int) (many []tx.Operation) {
		for range n {
			many = append(many, list("zz", "", 1))
		}
		return many
	}
	s.block("keys of ranges count among the reads of a block, empty ranges as one", "0 0 0 0 0 0 12 12 0",
		s.by("alice", put("m1", "1"), put("m2", "2"), put("m3", "3")), s.by("alice", empty(10_000)...), s.by("alice", empty(10_000)...), s.by("alice", empty(10_000)...),
		s.by("alice", empty(ReadBudget-30_005)...), s.by("alice", list("m", "n", 3), part("m", "n", 2)), s.by("alice", list("zz", "", 1)), s.by("alice", clear("m", "n", 1)),
		s.by("alice", put("a1", "9")))
}
