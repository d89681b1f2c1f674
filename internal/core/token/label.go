package token

import (
	"context"
	"encoding/base32"
	"encoding/hex"
)

// labelSumBytes is how many bytes of the signature a label has.
const labelSumBytes = 16

// LabelLength is the length of a label.
const LabelLength = (8*(idBytes+labelSumBytes) + 4) / 5

// labelEncoding has the digits and letters of a host name, in which capitals do not count.
var labelEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// Label returns the form of a secret for a host name, or "" if the text is not a secret.
func Label(secret string) string {
	id, sum, ok := parseSecret(secret)
	if !ok {
		return ""
	}
	raw, err := hex.DecodeString(id)
	if err != nil {
		return "" // parseSecret encoded it
	}
	return labelEncoding.EncodeToString(append(raw, sum[:labelSumBytes]...))
}

// parseLabel returns the ID and the part of the signature in a label.
func parseLabel(label string) (id string, sum []byte, ok bool) {
	raw, err := labelEncoding.DecodeString(label)
	if err != nil || len(raw) != idBytes+labelSumBytes || labelEncoding.EncodeToString(raw) != label {
		return "", nil, false
	}
	return hex.EncodeToString(raw[:idBytes]), raw[idBytes:], true
}

// FindLabel returns the ID and the grant of the token with a label.
//
// Unauthenticated: there is no such token. Other errors are those of the store.
func (t *Tokens) FindLabel(ctx context.Context, label string) (id string, g Grant, err error) {
	id, sum, ok := parseLabel(label)
	if !ok {
		return "", Grant{}, errToken
	}
	one, err := t.findRecord(ctx, id)
	if err != nil {
		return "", Grant{}, err
	}
	g = grantOf(one)
	if one.Legacy || !isSame(string(sum), string(t.signer.signToken(id, g, t.Epoch(g.Sandbox))[:labelSumBytes])) {
		return "", Grant{}, errToken
	}
	return id, g, nil
}

// AdmitLabel admits a request that shows the label of a token for one of some grants. The
// caller releases the admission. Errors are those of Admit.
func (t *Tokens) AdmitLabel(ctx context.Context, label string, grants ...Grant) (*Admission, error) {
	id, found, err := t.FindLabel(ctx, label)
	if err != nil {
		return nil, err
	}
	for _, g := range grants {
		if g == found {
			return t.admitRequest(ctx, id, g)
		}
	}
	return nil, errToken
}

// HolderOf returns the caller that asked for the token of a secret.
//
// Unauthenticated: there is no such token. Other errors are those of the store.
func (t *Tokens) HolderOf(ctx context.Context, secret string) (Holder, error) {
	id, sum, ok := parseSecret(secret)
	if !ok {
		return Holder{}, errToken
	}
	one, err := t.findRecord(ctx, id)
	if err != nil {
		return Holder{}, err
	}
	if g := grantOf(one); !isSame(string(sum), string(t.signer.signToken(id, g, t.Epoch(g.Sandbox)))) {
		return Holder{}, errToken
	}
	return Holder{Owner: one.Creator, Key: one.Key}, nil
}
