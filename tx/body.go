package tx

import "unicode/utf8"

// check checks the rules of a Body, in an app version, that need no state. Operations that the
// version does not know were refused before: see bodyTables.
func (b *Body) check(version uint64) error {
	if err := checkAccount("account", b.Account); err != nil {
		return err
	}
	switch n := len(b.Operations); {
	case n == 0:
		return Errorf(CodeMalformed, "the transaction has no operations")
	case n > MaxOperations:
		return Errorf(CodeTooLarge, "%d operations in a transaction, at most %d are allowed: split it", n, MaxOperations)
	}
	keys := 0
	for i := range b.Operations {
		if err := b.Operations[i].check(version); err != nil {
			return Errorf(err.Code, "operation %d: %s", i, err.Reason)
		}
		if b.Operations[i].alone() && len(b.Operations) > 1 {
			return Errorf(CodeMalformed, "operation %d: a proposal, or an approval of one, must be the only operation of its transaction", i)
		}
		if keys += b.Operations[i].Keys(); keys > MaxOperations {
			return Errorf(CodeTooLarge, "operation %d: the transaction names %d keys up to here, with the limits of its ranges, at most %d are allowed: split it", i, keys, MaxOperations)
		}
	}
	return nil
}

func (o *Operation) check(version uint64) *Error {
	switch op := o.Op.(type) {
	case *Operation_Put:
		if op.Put == nil {
			break
		}
		return firstError(checkWrite(op.Put.Key), checkSize("value", op.Put.Value, 1, MaxValueBytes))
	case *Operation_Delete:
		if op.Delete == nil {
			break
		}
		return checkWrite(op.Delete.Key)
	case *Operation_CompareAndPut:
		if op.CompareAndPut == nil {
			break
		}
		return firstError(checkWrite(op.CompareAndPut.Key),
			checkSize("expected value", op.CompareAndPut.Expected, 0, MaxValueBytes),
			checkSize("value", op.CompareAndPut.Value, 1, MaxValueBytes))
	case *Operation_Read:
		if op.Read == nil {
			break
		}
		return checkSize("key", op.Read.Key, 1, MaxKeyBytes)
	case *Operation_Grant:
		if op.Grant == nil {
			break
		}
		return firstError(checkGrantee(op.Grant.Grantee), checkPrefix(op.Grant.Prefix, version))
	case *Operation_Revoke:
		if op.Revoke == nil {
			break
		}
		return firstError(checkGrantee(op.Revoke.Grantee), checkPrefix(op.Revoke.Prefix, version))
	case *Operation_SetValidator:
		if op.SetValidator == nil {
			break
		}
		return op.SetValidator.check()
	case *Operation_SetAdmin:
		if op.SetAdmin == nil {
			break
		}
		return checkAccount("admin's account", op.SetAdmin.Account)
	case *Operation_ScheduleUpgrade:
		if op.ScheduleUpgrade == nil {
			break
		}
		return op.ScheduleUpgrade.check()
	case *Operation_Compare, *Operation_ReadRange, *Operation_DeleteRange, *Operation_Txn:
		return o.checkTxn()
	default:
		return o.checkTogether(version)
	}
	return Errorf(CodeMalformed, "empty, or of a kind that this version does not know")
}

func (v *SetValidator) check() *Error {
	if err := checkAccount("validator's public key", v.PublicKey); err != nil {
		return err
	}
	if v.Confirmed && v.Power == 0 {
		return Errorf(CodeMalformed, "a validator that is removed (power 0) cannot be confirmed: no node signs with its key")
	}
	return nil
}

func (u *ScheduleUpgrade) check() *Error {
	switch {
	case u.Height == 0 && u.Info != "":
		return Errorf(CodeMalformed, "an upgrade that is cancelled (height 0) must have no info")
	case len(u.Info) > MaxInfoBytes:
		return Errorf(CodeTooLarge, "the info has %d bytes, at most %d are allowed", len(u.Info), MaxInfoBytes)
	case !utf8.ValidString(u.Info):
		return Errorf(CodeMalformed, "the info is not UTF-8")
	}
	return nil
}

func firstError(errs ...*Error) *Error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkSize(what string, b []byte, least, most int) *Error {
	switch {
	case len(b) < least:
		return Errorf(CodeMalformed, "the %s is empty", what)
	case len(b) > most:
		return Errorf(CodeTooLarge, "the %s has %d bytes, at most %d are allowed", what, len(b), most)
	}
	return nil
}

// checkWrite checks a key that is to be written: its length, and that it is not a system key, which
// no transaction may write.
func checkWrite(key []byte) *Error {
	if err := checkSize("key", key, 1, MaxKeyBytes); err != nil {
		return err
	}
	if key[0] == Reserved {
		return Errorf(CodeReserved, "keys that start with byte 0x00 hold the chain's own records and cannot be written by a transaction")
	}
	return nil
}

// checkPrefix checks the prefix of a grant. From app version 2 on it may start with 0x00 if it is
// one for records of programs.
func checkPrefix(prefix []byte, version uint64) *Error {
	if len(prefix) > 0 && prefix[0] == Reserved && (version < 2 || !IsProgramKey(prefix)) {
		return Errorf(CodeReserved, "keys that start with byte 0x00 hold the chain's own records and cannot be granted")
	}
	return checkSize("prefix", prefix, 0, MaxPrefixBytes)
}

// checkAccount checks an account. It also refuses the zero key, which stands for "everyone" in the
// records of grants.
func checkAccount(what string, account []byte) *Error {
	if len(account) != AccountBytes {
		return Errorf(CodeMalformed, "the %s has %d bytes, an ed25519 public key has %d", what, len(account), AccountBytes)
	}
	if [AccountBytes]byte(account) == [AccountBytes]byte{} {
		return Errorf(CodeMalformed, "the %s is all zero, which is not a valid key", what)
	}
	return nil
}

func checkGrantee(grantee []byte) *Error {
	if len(grantee) == 0 {
		return nil // everyone
	}
	return checkAccount("grantee", grantee)
}
