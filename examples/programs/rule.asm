; A rule for other operations: an account may call use() a limited number of times a day (UTC). A transaction that calls it and puts keys is
; executed as a whole or not at all. An account with a grant on the keys can still put them without a call.
;
; The slot of an address has the day, and in its lowest 64 bits the number of calls on that day.

LIMIT = 0x010000000000000000000000000000000000000000 ; the slot of the limit, above all addresses
TODAY = 86400 TIMESTAMP DIV
; Replaces an address by the number of its calls today.
USED = SLOAD DUP1 64 SHR TODAY EQ MUL 0xffffffffffffffff AND

; constructor(uint256 limit)
32 .args ADD CODESIZE EQ @begin JUMPI 0 0 REVERT
begin:
32 .args 0 CODECOPY 0 MLOAD LIMIT SSTORE
.size .start 0 CODECOPY .size 0 RETURN

.runtime
0 CALLDATALOAD 224 SHR
DUP1 use() EQ @use JUMPI
DUP1 left(address) EQ @left JUMPI
refuse:
0 0 REVERT

use:
CALLER USED                                      ; used
DUP1 LIMIT SLOAD GT ISZERO @spent JUMPI
1 ADD TODAY 64 SHL OR CALLER SSTORE
STOP

left:
CALLDATASIZE 36 GT @refuse JUMPI 4 CALLDATALOAD DUP1 160 SHR @refuse JUMPI
USED LIMIT SLOAD SUB
0 MSTORE 32 0 RETURN

; Error(string)
spent:
Error(string) 224 SHL 0 MSTORE 32 4 MSTORE 28 36 MSTORE
'no calls are left until 0:00' 68 MSTORE 100 0 REVERT
