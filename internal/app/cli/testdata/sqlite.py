"""Works on a database in the ways programs do, and prints what it finds."""
import multiprocessing
import sqlite3
import sys

path = sys.argv[1]


def add(n):
    own = sqlite3.connect(path, timeout=60)
    for i in range(50):
        with own:
            own.execute("insert into log(worker, i) values (?, ?)", (n, i))
    own.close()


db = sqlite3.connect(path)
print("journal", db.execute("pragma journal_mode=wal").fetchone())
db.execute("create table log(id integer primary key, worker int, i int)")
db.execute("create table t(id integer primary key, name text unique, data blob)")
with db:
    db.executemany("insert into t(name, data) values (?, ?)", ((f"n{i}", bytes([i % 256]) * 100) for i in range(10000)))
print("rows", db.execute("select count(*), sum(length(data)) from t").fetchone())
try:
    with db:
        db.execute("delete from t")
        db.execute("insert into t(name) values ('x'), ('x')")
except sqlite3.IntegrityError as e:
    print("refused", e)
print("rolled back", db.execute("select count(*) from t").fetchone())

db.close()  # a connection must not be carried into another process
context = multiprocessing.get_context("fork")
workers = [context.Process(target=add, args=(n,)) for n in range(4)]
for w in workers:
    w.start()
for w in workers:
    w.join()
db = sqlite3.connect(path)
print("exit codes", [w.exitcode for w in workers])
print("log", db.execute("select worker, count(*), min(i), max(i) from log group by worker order by worker").fetchall())

db.create_function("twice", 1, lambda x: 2 * x)
print("function", db.execute("select twice(21)").fetchone())
db.execute("create virtual table words using fts5(text)")
with db:
    db.executemany("insert into words values (?)", [("the quick brown fox",), ("a lazy dog",)])
print("search", db.execute("select text from words where words match 'quick'").fetchall())
copy = sqlite3.connect(":memory:")
db.backup(copy)
print("backup", copy.execute("select count(*) from t").fetchone())
db.execute("vacuum")
print("check", db.execute("pragma integrity_check").fetchone())
db.close()
print("done")
