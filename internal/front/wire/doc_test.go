package wire_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
)

// TestFieldsAreDocumentedOnce has a field documented by its doc tag or by a comment, and not
// by both.
func TestFieldsAreDocumentedOnce(t *testing.T) {
	t.Parallel()
	var names []string
	for _, pattern := range []string{"*.go", "../../../api/*.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		names = append(names, found...)
	}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for n := range ast.Preorder(file) {
			field, ok := n.(*ast.Field)
			if !ok || field.Tag == nil || len(field.Names) == 0 {
				continue
			}
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				t.Fatal(err)
			}
			if doc := reflect.StructTag(tag).Get("doc"); doc != "" && field.Doc != nil {
				t.Errorf("%s: field %s has a doc tag and a comment", name, field.Names[0].Name)
			}
		}
	}
}
