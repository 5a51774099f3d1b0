"""TPC-H at a tiny scale: tables, rows made from a seed, and the 22 queries.

The rows follow the benchmark's rules as far as the queries look at them: keys refer to each other, dates lie within seven
years, names, types and containers are put together from the benchmark's words. The queries are those of the specification,
with parameters that give rows at this scale, and with ORDER BY on enough columns that LIMIT leaves no choice.
"""

import datetime
import random
from decimal import Decimal

TABLES = {
    "region": "r_regionkey int PRIMARY KEY, r_name varchar(25) NOT NULL, r_comment varchar(152)",
    "nation": "n_nationkey int PRIMARY KEY, n_name varchar(25) NOT NULL, n_regionkey int NOT NULL, n_comment varchar(152)",
    "supplier": "s_suppkey int PRIMARY KEY, s_name varchar(25) NOT NULL, s_address varchar(40) NOT NULL, "
    "s_nationkey int NOT NULL, s_phone varchar(15) NOT NULL, s_acctbal decimal(15,2) NOT NULL, s_comment varchar(101) NOT NULL",
    "customer": "c_custkey int PRIMARY KEY, c_name varchar(25) NOT NULL, c_address varchar(40) NOT NULL, "
    "c_nationkey int NOT NULL, c_phone varchar(15) NOT NULL, c_acctbal decimal(15,2) NOT NULL, "
    "c_mktsegment varchar(10) NOT NULL, c_comment varchar(117) NOT NULL",
    "part": "p_partkey int PRIMARY KEY, p_name varchar(55) NOT NULL, p_mfgr varchar(25) NOT NULL, p_brand varchar(10) NOT NULL, "
    "p_type varchar(25) NOT NULL, p_size int NOT NULL, p_container varchar(10) NOT NULL, "
    "p_retailprice decimal(15,2) NOT NULL, p_comment varchar(23) NOT NULL",
    "partsupp": "ps_partkey int, ps_suppkey int, ps_availqty int NOT NULL, ps_supplycost decimal(15,2) NOT NULL, "
    "ps_comment varchar(199) NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey)",
    "orders": "o_orderkey int PRIMARY KEY, o_custkey int NOT NULL, o_orderstatus varchar(1) NOT NULL, "
    "o_totalprice decimal(15,2) NOT NULL, o_orderdate date NOT NULL, o_orderpriority varchar(15) NOT NULL, "
    "o_clerk varchar(15) NOT NULL, o_shippriority int NOT NULL, o_comment varchar(79) NOT NULL",
    "lineitem": "l_orderkey int, l_partkey int NOT NULL, l_suppkey int NOT NULL, l_linenumber int, "
    "l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL, l_discount decimal(15,2) NOT NULL, "
    "l_tax decimal(15,2) NOT NULL, l_returnflag varchar(1) NOT NULL, l_linestatus varchar(1) NOT NULL, "
    "l_shipdate date NOT NULL, l_commitdate date NOT NULL, l_receiptdate date NOT NULL, "
    "l_shipinstruct varchar(25) NOT NULL, l_shipmode varchar(10) NOT NULL, l_comment varchar(44) NOT NULL, "
    "PRIMARY KEY (l_orderkey, l_linenumber)",
}

NATIONS = (
    "ALGERIA:0 ARGENTINA:1 BRAZIL:1 CANADA:1 EGYPT:4 ETHIOPIA:0 FRANCE:3 GERMANY:3 INDIA:2 INDONESIA:2 IRAN:4 IRAQ:4 JAPAN:2 "
    "JORDAN:4 KENYA:0 MOROCCO:0 MOZAMBIQUE:0 PERU:1 CHINA:2 ROMANIA:3 SAUDI_ARABIA:4 VIETNAM:2 RUSSIA:3 UNITED_KINGDOM:3 "
    "UNITED_STATES:1"
).split()
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
COLOURS = "almond azure blue chocolate cyan forest green ivory lemon olive red rose sky white yellow".split()
SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]
INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
CONTAINERS = ["SM CASE", "SM BOX", "MED BAG", "MED BOX", "LG CASE", "LG BOX", "WRAP CASE", "JUMBO PKG"]
TYPES = [["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"], ["ANODIZED", "BURNISHED", "PLATED"], ["TIN", "BRASS", "STEEL"]]
FIRST_DAY = datetime.date(1992, 1, 1)
CUT = datetime.date(1995, 6, 17)


def money(chance, low, high):
    return Decimal(chance.randint(low * 100, high * 100)) / 100


def phone(chance, nation):
    return f"{nation + 10}-{chance.randint(100, 999)}-{chance.randint(100, 999)}-{chance.randint(1000, 9999)}"


def generate(seed, orders=600, customers=60, parts=80, suppliers=12):
    """The rows of all tables, by table."""
    chance = random.Random(seed)
    rows = {name: [] for name in TABLES}
    rows["region"] = [(key, name, None) for key, name in enumerate(REGIONS)]
    for key, nation in enumerate(NATIONS):
        name, region = nation.split(":")
        rows["nation"].append((key, name.replace("_", " "), int(region), "of the world"))
    for key in range(1, suppliers + 1):
        nation = chance.choice([3, 6, 7, 18, chance.randrange(25)])
        comment = "even Customer and Complaints" if key % 5 == 0 else "quick and silent"
        name = f"Supplier#{key:09}"
        rows["supplier"].append((key, name, f"street {key}", nation, phone(chance, nation), money(chance, -999, 9999), comment))
    for key in range(1, customers + 1):
        nation = chance.choice([3, 6, 7, 8, chance.randrange(25)])
        rows["customer"].append(
            (key, f"Customer#{key:09}", f"road {key}", nation, phone(chance, nation), money(chance, -999, 9999))
            + (chance.choice(SEGMENTS), "sleeps well")
        )
    for key in range(1, parts + 1):
        maker = chance.randint(1, 5)
        name = " ".join(chance.sample(COLOURS, 5))
        kind = " ".join(chance.choice(words) for words in TYPES)
        price = Decimal(90000 + (key // 10) % 20001 + 100 * (key % 1000)) / 100
        rows["part"].append(
            (key, name, f"Manufacturer#{maker}", f"Brand#{maker}{chance.randint(1, 3)}", kind, chance.randint(1, 15))
            + (chance.choice(CONTAINERS), price, "fluffy")
        )
        for supplier in chance.sample(range(1, suppliers + 1), 4):
            rows["partsupp"].append((key, supplier, chance.randint(1, 9999), money(chance, 1, 1000), "in stock"))
    offers = {}
    for part, supplier, *_ in rows["partsupp"]:
        offers.setdefault(part, []).append(supplier)
    for key in range(1, orders + 1):
        # A third of the customers never order.
        customer = chance.choice([number for number in range(1, customers + 1) if number % 3])
        day = FIRST_DAY + datetime.timedelta(days=chance.randint(0, 2405))
        lines = []
        for number in range(1, chance.randint(1, 7) + 1):
            part = chance.randint(1, parts)
            quantity = chance.choice([chance.randint(1, 50), 50, 49])
            price = rows["part"][part - 1][7] * quantity
            shipped = day + datetime.timedelta(days=chance.randint(1, 121))
            committed = day + datetime.timedelta(days=chance.randint(30, 90))
            received = shipped + datetime.timedelta(days=chance.randint(1, 30))
            flag = chance.choice("RA") if received <= CUT else "N"
            lines.append(
                (key, part, chance.choice(offers[part]), number, quantity, price, Decimal(chance.randint(0, 10)) / 100)
                + (Decimal(chance.randint(0, 8)) / 100, flag, "O" if shipped > CUT else "F", shipped, committed, received)
                + (chance.choice(INSTRUCTIONS), chance.choice(MODES), "carefully packed")
            )
        states = {line[9] for line in lines}
        state = states.pop() if len(states) == 1 else "P"
        total = sum((line[5] * (1 - line[6]) * (1 + line[7]) for line in lines), Decimal()).quantize(Decimal("0.01"))
        comment = "special packages of requests" if chance.random() < 0.2 else "nothing to say"
        rows["orders"].append(
            (key, customer, state, total, day, chance.choice(PRIORITIES), f"Clerk#{chance.randint(1, 9):09}", 0, comment)
        )
        rows["lineitem"].extend(lines)
    return rows


QUERIES = {
    1: """SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) AS sum_charge,
avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS avg_disc, count(*) AS count_order
FROM lineitem WHERE l_shipdate <= date '1998-12-01' - interval '90 days'
GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
    2: """SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
FROM part, supplier, partsupp, nation, region
WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size < 8 AND p_type LIKE '%BRASS'
AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
AND ps_supplycost = (SELECT min(ps_supplycost) FROM partsupp, supplier, nation, region
    WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey
    AND n_regionkey = r_regionkey AND r_name = 'EUROPE')
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey LIMIT 100""",
    3: """SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey = o_orderkey
AND o_orderdate < date '1995-03-15' AND l_shipdate > date '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    4: """SELECT o_orderpriority, count(*) AS order_count FROM orders
WHERE o_orderdate >= date '1993-07-01' AND o_orderdate < date '1993-07-01' + interval '3 months'
AND EXISTS (SELECT * FROM lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
GROUP BY o_orderpriority ORDER BY o_orderpriority""",
    5: """SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM customer, orders, lineitem, supplier, nation, region
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey
AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE'
AND o_orderdate >= date '1994-01-01' AND o_orderdate < date '1994-01-01' + interval '1 year'
GROUP BY n_name ORDER BY revenue DESC""",
    6: """SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
WHERE l_shipdate >= date '1994-01-01' AND l_shipdate < date '1994-01-01' + interval '1 year'
AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01 AND l_quantity < 24""",
    7: """SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (
    SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, extract(year FROM l_shipdate) AS l_year,
    l_extendedprice * (1 - l_discount) AS volume
    FROM supplier, lineitem, orders, customer, nation n1, nation n2
    WHERE s_suppkey = l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey
    AND s_nationkey = n1.n_nationkey AND c_nationkey = n2.n_nationkey
    AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY') OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))
    AND l_shipdate BETWEEN date '1995-01-01' AND date '1996-12-31') AS shipping
GROUP BY supp_nation, cust_nation, l_year ORDER BY supp_nation, cust_nation, l_year""",
    8: """SELECT o_year, sum(CASE WHEN nation = 'FRANCE' THEN volume ELSE 0 END) / sum(volume) AS mkt_share FROM (
    SELECT extract(year FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume, n2.n_name AS nation
    FROM part, supplier, lineitem, orders, customer, nation n1, nation n2, region
    WHERE p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey
    AND c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'EUROPE'
    AND s_nationkey = n2.n_nationkey AND o_orderdate BETWEEN date '1995-01-01' AND date '1996-12-31'
    AND p_type LIKE 'ECONOMY%') AS all_nations
GROUP BY o_year ORDER BY o_year""",
    9: """SELECT nation, o_year, sum(amount) AS sum_profit FROM (
    SELECT n_name AS nation, extract(year FROM o_orderdate) AS o_year,
    l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount
    FROM part, supplier, lineitem, partsupp, orders, nation
    WHERE s_suppkey = l_suppkey AND ps_suppkey = l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey
    AND o_orderkey = l_orderkey AND s_nationkey = n_nationkey AND p_name LIKE '%green%') AS profit
GROUP BY nation, o_year ORDER BY nation, o_year DESC""",
    10: """SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address, c_phone, c_comment
FROM customer, orders, lineitem, nation
WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND o_orderdate >= date '1993-10-01'
AND o_orderdate < date '1993-10-01' + interval '3 months' AND l_returnflag = 'R' AND c_nationkey = n_nationkey
GROUP BY c_custkey, c_name, c_acctbal, c_phone, n_name, c_address, c_comment ORDER BY revenue DESC, c_custkey LIMIT 20""",
    11: """SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM partsupp, supplier, nation
WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name IN ('GERMANY', 'FRANCE', 'CANADA')
GROUP BY ps_partkey HAVING sum(ps_supplycost * ps_availqty) > (
    SELECT sum(ps_supplycost * ps_availqty) * 0.01 FROM partsupp, supplier, nation
    WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name IN ('GERMANY', 'FRANCE', 'CANADA'))
ORDER BY value DESC""",
    12: """SELECT l_shipmode,
sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0 END) AS high_line_count,
sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1 ELSE 0 END) AS low_line_count
FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate
AND l_shipdate < l_commitdate AND l_receiptdate >= date '1994-01-01' AND l_receiptdate < date '1994-01-01' + interval '1 year'
GROUP BY l_shipmode ORDER BY l_shipmode""",
    13: """SELECT c_count, count(*) AS custdist FROM (
    SELECT c_custkey, count(o_orderkey) AS c_count FROM customer LEFT OUTER JOIN orders
    ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY c_custkey) AS c_orders
GROUP BY c_count ORDER BY custdist DESC, c_count DESC""",
    14: """SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END)
/ sum(l_extendedprice * (1 - l_discount)) AS promo_revenue
FROM lineitem, part WHERE l_partkey = p_partkey AND l_shipdate >= date '1995-09-01'
AND l_shipdate < date '1995-09-01' + interval '1 month'""",
    15: """WITH revenue AS (
    SELECT l_suppkey AS supplier_no, sum(l_extendedprice * (1 - l_discount)) AS total_revenue FROM lineitem
    WHERE l_shipdate >= date '1996-01-01' AND l_shipdate < date '1996-01-01' + interval '3 months' GROUP BY l_suppkey)
SELECT s_suppkey, s_name, s_address, s_phone, total_revenue FROM supplier, revenue
WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue) ORDER BY s_suppkey""",
    16: """SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM partsupp, part
WHERE p_partkey = ps_partkey AND p_brand <> 'Brand#41' AND p_type NOT LIKE 'MEDIUM%' AND p_size IN (1, 3, 4, 5, 9, 10, 12, 14)
AND ps_suppkey NOT IN (SELECT s_suppkey FROM supplier WHERE s_comment LIKE '%Customer%Complaints%')
GROUP BY p_brand, p_type, p_size ORDER BY supplier_cnt DESC, p_brand, p_type, p_size""",
    17: """SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM lineitem, part
WHERE p_partkey = l_partkey AND p_container LIKE 'MED%'
AND l_quantity < (SELECT 0.5 * avg(l_quantity) FROM lineitem WHERE l_partkey = p_partkey)""",
    18: """SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity FROM customer, orders, lineitem
WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 250)
AND c_custkey = o_custkey AND o_orderkey = l_orderkey
GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice ORDER BY o_totalprice DESC, o_orderdate, o_orderkey LIMIT 100""",
    19: """SELECT sum(l_extendedprice * (1 - l_discount)) AS revenue FROM lineitem, part
WHERE (p_partkey = l_partkey AND p_brand LIKE 'Brand#1%' AND p_container IN ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
    AND l_quantity >= 1 AND l_quantity <= 11 AND p_size BETWEEN 1 AND 5 AND l_shipmode IN ('AIR', 'REG AIR'))
OR (p_partkey = l_partkey AND p_brand LIKE 'Brand#2%' AND p_container IN ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
    AND l_quantity >= 10 AND l_quantity <= 50 AND p_size BETWEEN 1 AND 10 AND l_shipmode IN ('AIR', 'REG AIR'))
OR (p_partkey = l_partkey AND p_brand LIKE 'Brand#3%' AND p_container IN ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
    AND l_quantity >= 20 AND l_quantity <= 50 AND p_size BETWEEN 1 AND 15 AND l_shipmode IN ('AIR', 'REG AIR'))""",
    20: """SELECT s_name, s_address FROM supplier, nation
WHERE s_suppkey IN (SELECT ps_suppkey FROM partsupp
    WHERE ps_partkey IN (SELECT p_partkey FROM part WHERE p_name LIKE '%forest%')
    AND ps_availqty > (SELECT 0.5 * sum(l_quantity) FROM lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey
        AND l_shipdate >= date '1994-01-01' AND l_shipdate < date '1994-01-01' + interval '1 year'))
AND s_nationkey = n_nationkey AND n_name IN ('CANADA', 'FRANCE', 'GERMANY') ORDER BY s_name""",
    21: """SELECT s_name, count(*) AS numwait FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate
AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_suppkey <> l1.l_suppkey
    AND l3.l_receiptdate > l3.l_commitdate)
AND s_nationkey = n_nationkey AND n_name IN ('CANADA', 'FRANCE', 'GERMANY')
GROUP BY s_name ORDER BY numwait DESC, s_name LIMIT 100""",
    22: """SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (
    SELECT substring(c_phone, 1, 2) AS cntrycode, c_acctbal FROM customer
    WHERE substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '16', '18', '17')
    AND c_acctbal > (SELECT avg(c_acctbal) FROM customer WHERE c_acctbal > 0.00
        AND substring(c_phone, 1, 2) IN ('13', '31', '23', '29', '16', '18', '17'))
    AND NOT EXISTS (SELECT * FROM orders WHERE o_custkey = c_custkey)) AS custsale
GROUP BY cntrycode ORDER BY cntrycode""",
}
