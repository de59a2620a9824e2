"""Write ``seed/*.json``: invented rows, the same ones on each run and each Python version.

Nothing here is real: e-mail addresses end in ``example.com``, telephone numbers start with the
unassigned country code 999, account numbers with the country ``ZZ``, which no bank uses, and
article numbers with 2, which is kept for use inside a shop. Check digits are right all the same.

One file, so that it can be read and run without anything beside it.

Only ``Random.random`` is used: it is the one method whose sequence Python promises to keep.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID, uuid5

Row = dict[str, Any]
T = TypeVar("T")

SEED_FOLDER = Path(__file__).parent / "seed"
SEED = 20_250_101
TODAY = date(2025, 1, 1)
NAMESPACE = UUID("6f1d7c1e-54a7-5c0e-9d62-6d2f7c1a0b11")

CUSTOMERS = 2_000
NEAR_DUPLICATES = 60  # of the customers: the same party entered twice, a little differently
ADDRESSES = 3_000
BANK_ACCOUNTS = 1_200
PRODUCTS = 400

REGIONS: Sequence[tuple[str, str, str]] = (
    ("ANZ", "Australia and New Zealand", "APAC"),
    ("CEE", "Central and Eastern Europe", "EMEA"),
    ("DACH", "Germany, Austria, Switzerland", "EMEA"),
    ("FRBNL", "France and Benelux", "EMEA"),
    ("LATAM", "Latin America", "AMER"),
    ("MEA", "Middle East and Africa", "EMEA"),
    ("NEASIA", "North-East Asia", "APAC"),
    ("NORAM", "North America", "AMER"),
    ("NORDICS", "Nordic countries", "EMEA"),
    ("SASIA", "South and South-East Asia", "APAC"),
    ("SEUROPE", "Southern Europe", "EMEA"),
    ("UKI", "United Kingdom and Ireland", "EMEA"),
)
MANAGERS = ("ada", "bela", "chidi", "dina", "emre", "farah", "goran", "hana", "ines", "jonas")


@dataclass(frozen=True, slots=True)
class Locale:
    """What names and addresses look like in one country. In a postcode ``#`` is a digit, ``@`` a
    letter; in a street ``{n}`` is the house number."""

    country: str
    language: str
    region: str
    given: Sequence[str]
    family: Sequence[str]
    cities: Sequence[str]
    streets: Sequence[str]
    postcode: str
    companies: Sequence[str]
    family_first: bool = False
    joiner: str = " "


def words(text: str) -> tuple[str, ...]:
    """Split at commas, in the composed form that databases and people compare."""
    return tuple(unicodedata.normalize("NFC", word.strip()) for word in text.split(","))


LOCALES: Sequence[Locale] = (
    Locale(
        "DE", "de", "DACH",
        words("Anna, Jürgen, Lena, Matthias, Sabine, Björn, Käthe, Felix, Ute, Jörg"),
        words("Müller, Schmidt, Weiß, Schröder, Krüger, Jäger, Lehmann, Böhm, Voß, Zimmermann"),
        words("Berlin, Köln, München, Leipzig, Nürnberg, Göttingen"),
        words("Lindenstraße {n}, Am Bahnhof {n}, Gartenweg {n}, Mühlgasse {n}"),
        "#####", words("{f} GmbH, {f} & Söhne KG, {c}er Werkzeugbau AG"),
    ),
    Locale(
        "CH", "de", "DACH",
        words("Urs, Regula, Beat, Ursina, Reto, Annelies, Luca, Seraina"),
        words("Meier, Bächli, Zürcher, Ammann, Wyss, Brülhart, Caflisch, Nägeli"),
        words("Zürich, Bern, Genève, Chur, Biel/Bienne"),
        words("Seestrasse {n}, Dorfplatz {n}, Bergweg {n}"),
        "####", words("{f} AG, {f} Uhren GmbH"),
    ),
    Locale(
        "FR", "fr", "FRBNL",
        words("Élodie, François, Zoé, Jérôme, Hélène, Loïc, Maëlle, Benoît"),
        words("Dupont, Lefèvre, Gauthier, Mérieux, D'Aubigné, Le Goff, Béranger, Noël"),
        words("Paris, Lyon, Nîmes, Orléans, Besançon"),
        words("{n} rue de la Fontaine, {n} bis avenue du Général, {n} impasse des Lilas"),
        "#####", words("{f} SARL, Établissements {f}, Société {f} et Fils SA"),
    ),
    Locale(
        "NL", "nl", "FRBNL",
        words("Sanne, Daan, Fleur, Jeroen, Anouk, Willem, Noor, Thijs"),
        words("de Vries, van den Berg, Jansen, 't Hart, van 't Hoff, Bakker, IJzerman"),
        words("Amsterdam, Utrecht, 's-Hertogenbosch, Groningen"),
        words("Kerkstraat {n}, Prinsengracht {n}, Nieuwe Dijk {n}"),
        "#### @@", words("{f} B.V., {f} Logistiek B.V."),
    ),
    Locale(
        "SE", "sv", "NORDICS",
        words("Åsa, Björn, Elin, Göran, Malin, Örjan, Linnéa, Håkan"),
        words("Åkesson, Lindström, Öberg, Nyström, Sjögren, Bergqvist, Ångström"),
        words("Stockholm, Göteborg, Malmö, Umeå, Växjö"),
        words("Storgatan {n}, Björkvägen {n}, Skolgatan {n}"),
        "### ##", words("{f} AB, {f} Maskin AB"),
    ),
    Locale(
        "NO", "nb", "NORDICS",
        words("Øyvind, Ingrid, Kåre, Solveig, Pål, Ragnhild, Håvard"),
        words("Ødegård, Bjørnstad, Haugen, Sæther, Nygård, Bråten"),
        words("Oslo, Bergen, Tromsø, Ålesund, Bodø"),
        words("Strandgata {n}, Kirkeveien {n}, Fjellveien {n}"),
        "####", words("{f} AS, {f} Fisk AS"),
    ),
    Locale(
        "GB", "en", "UKI",
        words("Olivia, George, Siân, Rhys, Harriet, Alasdair, Priya, Callum"),
        words("Smith, O'Connor, MacLeod, Llewellyn, Fitz-William, Patel, Brown, Featherstone"),
        words("London, Leeds, Bristol, Aberdeen, Cardiff"),
        words("{n} High Street, {n} Mill Lane, Flat 2 {n} Station Road"),
        "@@# #@@", words("{f} Ltd, {f} & Daughters Ltd, The {c} Tea Company plc"),
    ),
    Locale(
        "IE", "en", "UKI",
        words("Aoife, Seán, Niamh, Pádraig, Siobhán, Oisín, Gráinne"),
        words("Ó Briain, Murphy, Ní Dhomhnaill, Walsh, O'Sullivan, Mac Gearailt"),
        words("Dublin, Cork, Galway, Dún Laoghaire"),
        words("{n} Quay Street, {n} Chapel Road"),
        "@## @@##", words("{f} Teoranta, {f} Dairies Ltd"),
    ),
    Locale(
        "ES", "es", "SEUROPE",
        words("Íñigo, María José, Andrés, Begoña, Ángel, Núria, Sofía, Joaquín"),
        words("Núñez García, Ibáñez, de la Cruz, Peña, Muñoz Vidal, Sánchez, Güell"),
        words("Madrid, Barcelona, A Coruña, Málaga, Logroño"),
        words("Calle Mayor {n}, Avenida de la Paz {n}, Plaza Nueva {n}"),
        "#####", words("{f} S.L., Hermanos {f} S.A."),
    ),
    Locale(
        "IT", "it", "SEUROPE",
        words("Chiara, Niccolò, Giulia, Matteo, Letizia, Dario, Noemi"),
        words("Rossi, D'Angelo, Dalla Costa, Forlì, Esposito, Lo Presti"),
        words("Roma, Milano, Torino, Forlì, L'Aquila"),
        words("Via Garibaldi {n}, Piazza del Popolo {n}, Corso Italia {n}"),
        "#####", words("{f} S.r.l., Fratelli {f} S.p.A."),
    ),
    Locale(
        "GR", "el", "SEUROPE",
        words("Γιώργος, Ελένη, Δημήτρης, Μαρία, Νίκος, Κατερίνα, Σπύρος"),
        words("Παπαδόπουλος, Νικολάου, Γεωργίου, Οικονόμου, Βασιλείου"),
        words("Αθήνα, Θεσσαλονίκη, Πάτρα, Ηράκλειο"),
        words("Οδός Ερμού {n}, Λεωφόρος Κηφισίας {n}"),
        "### ##", words("{f} Α.Ε., {f} και Υιοί Ο.Ε."),
    ),
    Locale(
        "PL", "pl", "CEE",
        words("Małgorzata, Łukasz, Zofia, Grzegorz, Agnieszka, Paweł, Żaneta"),
        words("Wiśniewska, Kowalczyk, Zając, Dąbrowski, Wójcik, Święcicka, Łoś"),
        words("Warszawa, Kraków, Łódź, Gdańsk, Wrocław"),
        words("ul. Polna {n}, ul. Świętego Jana {n}, al. Róż {n}"),
        "##-###", words("{f} sp. z o.o., Zakłady {f} S.A."),
    ),
    Locale(
        "CZ", "cs", "CEE",
        words("Jiří, Kateřina, Ondřej, Šárka, Zdeněk, Běla, Tomáš"),
        words("Dvořák, Nováková, Říha, Žižka, Čermáková, Hrubý, Škvor"),
        words("Praha, Brno, Plzeň, České Budějovice"),
        words("Dlouhá {n}, Na Příkopě {n}, Školní {n}"),
        "### ##", words("{f} s.r.o., Strojírna {f} a.s."),
    ),
    Locale(
        "UA", "uk", "CEE",
        words("Олександр, Оксана, Юрій, Наталія, Богдан, Ганна, Тарас"),
        words("Шевченко, Коваленко, Бондар, Гнатюк, Ткаченко, Ґалаґан"),
        words("Київ, Львів, Одеса, Харків"),
        words("вул. Садова {n}, просп. Свободи {n}"),
        "#####", words("ТОВ {f}, ПП {f} та партнери"),
    ),
    Locale(
        "TR", "tr", "MEA",
        words("İbrahim, Ayşe, Çağrı, Şule, Gülşah, Oğuz, Işıl, Ömer"),
        words("Yılmaz, Öztürk, Çelik, Şahin, Kılıç, Aydın, Güneş"),
        words("İstanbul, Ankara, İzmir, Diyarbakır, Muğla"),
        words("Atatürk Cad. No {n}, Gül Sok. No {n}"),
        "#####", words("{f} Ltd. Şti., {f} Tekstil A.Ş."),
    ),
    Locale(
        "AE", "ar", "MEA",
        words("محمد, فاطمة, أحمد, عائشة, يوسف, نورة, خالد"),
        words("الهاشمي, المنصوري, النعيمي, الشامسي, المزروعي"),
        words("دبي, أبوظبي, الشارقة, العين"),
        words("شارع الشيخ {n}, شارع النخيل {n}"),
        "#####", words("شركة {f} للتجارة, مجموعة {f}"),
    ),
    Locale(
        "IL", "he", "MEA",
        words("נועה, דוד, יעל, אבי, תמר, משה, שירה"),
        words("כהן, לוי, מזרחי, פרידמן, אברהמי"),
        words("תל אביב, ירושלים, חיפה, באר שבע"),
        words('שד\' רוטשילד {n}, רחוב הרצל {n}'),
        "#######", words('{f} בע"מ'),
    ),
    Locale(
        "NG", "en", "MEA",
        words("Chinedu, Ngọzi, Babátúndé, Amina, Ọlá, Ifeoma, Musa"),
        words("Okafor, Adébáyọ̀, Ibrahim, Nwosu, Ọláyínká, Eze"),
        words("Lagos, Abuja, Kano, Ìbàdàn"),
        words("{n} Market Road, Plot {n} Airport Avenue"),
        "######", words("{f} Nigeria Ltd, {f} Ventures"),
    ),
    Locale(
        "US", "en", "NORAM",
        words("Emma, Liam, Aaliyah, José, Madison, Tyrone, Mei-Ling, Hunter"),
        words("Johnson, Rodriguez, Washington, O'Hara, Van Dyke, Nguyen, Smith-Jones, Miller"),
        words("Springfield, Portland, Austin, Boise, Albany"),
        words("{n} Main St, {n} Oak Ave Apt 4, {n} County Road 12"),
        "#####", words("{f} Inc., {f} & Co. LLC, {c} Hardware Inc."),
    ),
    Locale(
        "CA", "fr", "NORAM",
        words("Geneviève, Étienne, Noémie, Jean-François, Océane, Rémi"),
        words("Tremblay, Côté, Bélanger, Gagné, St-Pierre, Lévesque"),
        words("Montréal, Québec, Trois-Rivières, Ottawa"),
        words("{n} rue Principale, {n} chemin du Lac"),
        "@#@ #@#", words("{f} inc., Érablière {f} ltée"),
    ),
    Locale(
        "BR", "pt", "LATAM",
        words("João, Conceição, Antônia, Luís, Júlia, Caetano, Inês"),
        words("da Silva, Gonçalves, Araújo, dos Santos, Magalhães, Brandão"),
        words("São Paulo, Brasília, Belém, Maceió, Florianópolis"),
        words("Rua das Flores {n}, Avenida Paulista {n}"),
        "#####-###", words("{f} Ltda., {f} Irmãos S.A."),
    ),
    Locale(
        "MX", "es", "LATAM",
        words("Guadalupe, Raúl, Xóchitl, José Ángel, Verónica, Jesús, Itzel"),
        words("Hernández López, Ramírez, Peñaloza, Zúñiga, Ávila, Núñez"),
        words("Ciudad de México, Mérida, León, Querétaro, Oaxaca"),
        words("Calle Hidalgo {n}, Av. Insurgentes {n}"),
        "#####", words("{f} S.A. de C.V., Grupo {f}"),
    ),
    Locale(
        "JP", "ja", "NEASIA",
        words("陽菜, 健太, さくら, 大輔, 美咲, 翔太, 由美子"),
        words("佐藤, 鈴木, 高橋, 渡辺, 小林, 齋藤"),
        words("東京, 大阪, 京都, 札幌, 福岡"),
        words("本町{n}丁目1番, 中央{n}-2-3"),
        "###-####", words("株式会社{f}製作所, {f}商事株式会社"),
        family_first=True,
    ),
    Locale(
        "CN", "zh", "NEASIA",
        words("伟, 芳, 秀英, 子轩, 丽, 浩然, 静"),
        words("王, 李, 张, 刘, 陈, 欧阳"),
        words("北京, 上海, 广州, 成都, 西安"),
        words("人民路{n}号, 解放大道{n}号"),
        "######", words("{c}{f}氏贸易有限公司, {f}记食品有限公司"),
        family_first=True, joiner="",
    ),
    Locale(
        "KR", "ko", "NEASIA",
        words("민준, 서연, 지훈, 하은, 현우, 수빈, 영희"),
        words("김, 이, 박, 최, 정, 남궁"),
        words("서울, 부산, 대구, 인천, 광주"),
        words("세종대로 {n}, 중앙로 {n}"),
        "#####", words("주식회사 {f}산업, {f}전자"),
        family_first=True, joiner="",
    ),
    Locale(
        "IN", "hi", "SASIA",
        words("आरव, प्रिया, राहुल, अनिता, विवेक, सुनीता, Lakshmi, Arjun"),
        words("शर्मा, वर्मा, गुप्ता, Iyer, Krishnan, Chatterjee"),
        words("Mumbai, दिल्ली, Bengaluru, जयपुर, Kolkata"),
        words("{n} MG Road, मकान {n} गांधी नगर"),
        "######", words("{f} Pvt. Ltd., {f} ट्रेडर्स"),
    ),
    Locale(
        "TH", "th", "SASIA",
        words("สมชาย, สุดา, ณัฐพล, ปิยะดา, วีระ, กมลชนก"),
        words("ใจดี, ศรีสุข, ทองคำ, วงศ์สวัสดิ์, แสงจันทร์"),
        words("กรุงเทพมหานคร, เชียงใหม่, ภูเก็ต"),
        words("{n} ถนนสุขุมวิท, {n} ถนนพหลโยธิน"),
        "#####", words("บริษัท {f} จำกัด"),
    ),
    Locale(
        "VN", "vi", "SASIA",
        words("Thị Hương, Văn Đức, Ngọc Ánh, Quốc Bảo, Thùy Dương"),
        words("Nguyễn, Trần, Lê, Phạm, Đặng, Vũ"),
        words("Hà Nội, Đà Nẵng, Cần Thơ, Huế"),
        words("{n} Lê Lợi, {n} đường Hùng Vương"),
        "######", words("Công ty TNHH {f}"),
        family_first=True,
    ),
    Locale(
        "AU", "en", "ANZ",
        words("Charlotte, Jack, Matilda, Lachlan, Ngaio, Angus, Thuy"),
        words("Taylor, O'Brien, Kelly, Papadopoulos, Campbell, Tran"),
        words("Sydney, Hobart, Perth, Wagga Wagga"),
        words("{n} George Street, Unit 3 {n} Beach Road"),
        "####", words("{f} Pty Ltd, {c} Surf Co Pty Ltd"),
    ),
    Locale(
        "NZ", "mi", "ANZ",
        words("Anahera, Tāne, Māia, Wiremu, Kiri, Hēmi"),
        words("Ngāta, Walker, Te Rangi, Parāone, Tūhoe, Wilson"),
        words("Auckland, Whangārei, Taupō, Ōtautahi"),
        words("{n} Queen Street, {n} Kōwhai Crescent"),
        "####", words("{f} Holdings Ltd"),
    ),
)  # fmt: skip

CATEGORIES: Sequence[tuple[str, str, Sequence[tuple[str, str]]]] = (
    ("TOOL", "Tools", (
        ("HAND", "Hand tools"), ("POWER", "Power tools"), ("MEAS", "Measuring"),
        ("CUT", "Cutting"), ("STOR", "Tool storage"), ("WORK", "Workbenches"),
    )),
    ("GARD", "Garden", (
        ("SEED", "Seeds"), ("POTS", "Pots"), ("IRRI", "Irrigation"), ("FURN", "Garden furniture"),
        ("LAWN", "Lawn care"), ("SHED", "Sheds"),
    )),
    ("KITC", "Kitchen", (
        ("COOK", "Cookware"), ("KNIF", "Knives"), ("TABL", "Tableware"), ("BAKE", "Baking"),
        ("COFF", "Coffee and tea"), ("APPL", "Small appliances"),
    )),
    ("OFFI", "Office", (
        ("PAPE", "Paper"), ("WRIT", "Writing"), ("DESK", "Desks"), ("CHAI", "Chairs"),
        ("FILE", "Filing"), ("LAMP", "Desk lamps"),
    )),
    ("OUTD", "Outdoor", (
        ("TENT", "Tents"), ("BAGS", "Backpacks"), ("CLIM", "Climbing"), ("CAMP", "Camp kitchen"),
        ("BIKE", "Cycling"), ("LANT", "Lanterns"),
    )),
    ("SAFE", "Safety", (
        ("GLOV", "Gloves"), ("HELM", "Helmets"), ("SHOE", "Safety shoes"), ("AID", "First aid"),
    )),
)  # fmt: skip

MATERIALS = words("Oak, Steel, Linen, Copper, Bamboo, Ceramic, Cork, Walnut, Wool, Enamel")
STYLES = words("Classic, Compact, Nordic, Heavy-duty, Foldable, Travel, Studio, Everyday")
COLOURS = words("black, white, moss green, ochre, slate, crème, bordeaux, indigo")


class Dice:
    """Draws that depend on ``Random.random`` alone."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def digits(self, count: int) -> str:
        return "".join(str(self.below(10)) for _ in range(count))

    def day(self, first: date, last: date) -> date:
        return first + timedelta(days=self.below((last - first).days + 1))

    def filled(self, template: str) -> str:
        letters = "ABCDEFGHJKLMNPRSTUVWXYZ"
        fill = {"#": lambda: str(self.below(10)), "@": lambda: self.pick(letters)}
        return "".join(fill[sign]() if sign in fill else sign for sign in template)


def regions() -> Iterator[Row]:
    for number, (code, name, area) in enumerate(REGIONS):
        yield {
            "code": code,
            "name": name,
            "area": area,
            "manager": f"{MANAGERS[number % len(MANAGERS)]}@example.com",
            "steward_group": f"stewards-{area.lower()}",
        }


def customers(dice: Dice) -> list[Row]:
    rows: list[Row] = []
    for number in range(1, CUSTOMERS - NEAR_DUPLICATES + 1):
        rows.append(_customer(dice, number, rows))
    originals = len(rows)
    for number in range(originals + 1, CUSTOMERS + 1):
        rows.append(_entered_again(dice, rows[dice.below(originals)], number))
    return rows


def _customer(dice: Dice, number: int, others: Sequence[Row]) -> Row:
    locale = dice.pick(LOCALES)
    is_company = dice.chance(40)
    given, family = dice.pick(locale.given), dice.pick(locale.family)
    since = dice.day(date(1998, 1, 1), TODAY)
    row: Row = {
        "customer_number": f"C{number:06d}",
        "kind": "company" if is_company else "person",
        "name": _company_name(dice, locale) if is_company else _person_name(locale, given, family),
        "country": locale.country,
        "language": locale.language,
        "region": locale.region,
        "status": dice.pick(("active",) * 7 + ("prospect", "blocked", "closed")),
        "account_manager": f"{dice.pick(MANAGERS)}@example.com",
        "customer_since": since.isoformat(),
        "marketing_consent": dice.chance(55),
    }
    if dice.chance(92):
        row["email"] = f"{_mailbox(given, family, row['customer_number'])}@example.com"
    if dice.chance(80):
        row["phone"] = f"+999{dice.digits(9)}"
    row |= _company_details(dice, locale, number, others) if is_company else _birth_date(dice)
    if dice.chance(70):
        row["credit_limit"] = f"{dice.between(1, 400) * 250}.00"
        row["rating"] = dice.between(1, 5)
    if dice.chance(30):
        row["external_ids"] = {"crm": dice.between(10_000, 99_999), "shop": f"s-{dice.digits(7)}"}
    if dice.chance(8):
        row["notes"] = dice.pick(
            words("Prefers letters, Invoice in two copies, Deliver to the back door, Call first")
        )
    return row


def _person_name(locale: Locale, given: str, family: str) -> str:
    parts = (family, given) if locale.family_first else (given, family)
    return locale.joiner.join(parts)


def _company_name(dice: Dice, locale: Locale) -> str:
    template = dice.pick(locale.companies)
    return template.format(f=dice.pick(locale.family), c=dice.pick(locale.cities))


def _mailbox(given: str, family: str, number: str) -> str:
    plain = unicodedata.normalize("NFKD", f"{given}.{family}").encode("ascii", "ignore").decode()
    kept = "".join(sign for sign in plain.lower() if sign.isalnum() or sign == ".").strip(".")
    return f"{kept}.{number[-3:]}" if len(kept) >= 5 else number.lower()


def _company_details(dice: Dice, locale: Locale, number: int, others: Sequence[Row]) -> Row:
    details: Row = {"tax_id": f"{locale.country}-{number:06d}{dice.digits(3)}"}
    parents = [row for row in others[-40:] if row["kind"] == "company" and "parent" not in row]
    if parents and dice.chance(12):
        details["parent"] = dice.pick(parents)["customer_number"]
    return details


def _birth_date(dice: Dice) -> Row:
    return {"birth_date": dice.day(date(1935, 1, 1), date(2006, 12, 31)).isoformat()}


def _entered_again(dice: Dice, original: Row, number: int) -> Row:
    """The same party once more, as a second person typed it: no tax number, a slip in the name."""
    copy = {column: value for column, value in original.items() if column != "tax_id"}
    name = str(copy["name"])
    at = dice.between(1, max(1, len(name) - 2))
    slips = (
        name.upper(),
        name[:at] + name[at + 1 :],
        name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
        unicodedata.normalize("NFC", _without_marks(name)),
    )
    copy |= {"customer_number": f"C{number:06d}", "name": dice.pick(slips), "status": "prospect"}
    copy.pop("external_ids", None)
    copy.pop("parent", None)
    return copy


def _without_marks(name: str) -> str:
    return "".join(sign for sign in unicodedata.normalize("NFD", name) if not _is_mark(sign))


def _is_mark(sign: str) -> bool:
    return 0x300 <= ord(sign) <= 0x36F  # marks on Latin, Greek and Cyrillic letters only


def addresses(dice: Dice, customer_rows: Sequence[Row]) -> list[Row]:
    rows: list[Row] = []
    used: dict[tuple[str, str], int] = {}
    while len(rows) < ADDRESSES:
        index = len(rows)
        customer = customer_rows[index] if index < len(customer_rows) else dice.pick(customer_rows)
        purpose = "billing" if index < len(customer_rows) else dice.pick(PURPOSES)
        pair = (customer["customer_number"], purpose)
        used[pair] = used.get(pair, 0) + 1
        rows.append(_address(dice, customer, purpose, used[pair]))
    return sorted(rows, key=lambda row: (row["customer"], row["purpose"], row["position"]))


PURPOSES = ("billing", "shipping", "shipping", "visiting")


def _address(dice: Dice, customer: Row, purpose: str, position: int) -> Row:
    locale = dice.pick([one for one in LOCALES if one.country == customer["country"]])
    number = customer["customer_number"]
    valid_from = dice.day(date.fromisoformat(customer["customer_since"]), TODAY)
    row: Row = {
        "customer": number,
        "purpose": purpose,
        "position": position,
        "address_id": str(uuid5(NAMESPACE, f"{number}/{purpose}/{position}")),
        "street": dice.pick(locale.streets).format(n=dice.between(1, 180)),
        "postal_code": dice.filled(locale.postcode),
        "city": dice.pick(locale.cities),
        "country": locale.country,
        "valid_from": valid_from.isoformat(),
    }
    if dice.chance(10):
        row["valid_to"] = dice.day(valid_from, date(2027, 12, 31)).isoformat()
    if dice.chance(25):
        row["latitude"] = f"{dice.between(-6_000, 7_000) / 100:.2f}"
        row["longitude"] = f"{dice.between(-17_900, 17_900) / 100:.2f}"
    return row


def bank_accounts(dice: Dice, customer_rows: Sequence[Row]) -> list[Row]:
    step = len(customer_rows) / BANK_ACCOUNTS
    owners = [customer_rows[int(index * step)] for index in range(BANK_ACCOUNTS)]
    rows = [_bank_account(dice, owner, index) for index, owner in enumerate(owners)]
    return sorted(rows, key=lambda row: str(row["iban"]))


def _bank_account(dice: Dice, owner: Row, index: int) -> Row:
    number = f"{dice.digits(12)}{index:06d}"
    opened = dice.day(date.fromisoformat(owner["customer_since"]), TODAY)
    confirmed = datetime(opened.year, opened.month, opened.day, tzinfo=UTC) + timedelta(
        minutes=dice.between(7 * 60, 18 * 60)
    )
    row: Row = {
        "iban": f"ZZ{iban_check_digits('ZZ', number)}{number}",
        "customer": owner["customer_number"],
        "holder": owner["name"],
        "bank": f"{dice.pick(('First', 'Second', 'Third'))} Example Bank",
    }
    if dice.chance(85):
        row["confirmed_at"] = confirmed.isoformat().replace("+00:00", "Z")
    return row


def iban_check_digits(country: str, number: str) -> str:
    """ISO 7064 MOD 97-10 over the number, the country and 00, letters counted from A = 10."""
    digits = "".join(str(int(sign, 36)) for sign in f"{number}{country}00")
    return f"{98 - int(digits) % 97:02d}"


def categories() -> list[Row]:
    rows: list[Row] = []
    for position, (code, name, children) in enumerate(CATEGORIES, start=1):
        rows.append({"code": code, "name": name, "position": position * 10})
        for below, (suffix, child) in enumerate(children, start=1):
            rows.append(
                {
                    "code": f"{code}-{suffix}",
                    "name": child,
                    "parent": code,
                    "position": below * 10,
                }
            )
    return rows


def products(dice: Dice, category_rows: Sequence[Row]) -> list[Row]:
    leaves = [row for row in category_rows if "parent" in row]
    return [_product(dice, number, dice.pick(leaves)) for number in range(1, PRODUCTS + 1)]


def _product(dice: Dice, number: int, category: Row) -> Row:
    digits = f"2{number:06d}{dice.digits(5)}"
    launched = dice.day(date(2012, 1, 1), TODAY)
    status = dice.pick(("active",) * 6 + ("draft", "discontinued"))
    colour, material = dice.pick(COLOURS), dice.pick(MATERIALS)
    row: Row = {
        "sku": f"{category['parent'][:2]}-{number:05d}",
        "name": f"{dice.pick(STYLES)} {material.lower()} {category['name'].lower()}, {colour}",
        "category": category["code"],
        "status": status,
        "gtin": digits + gtin_check_digit(digits),
        "list_price": f"{dice.between(2, 900)}.{dice.pick(('00', '50', '90', '95', '99'))}",
        "currency": dice.pick(("EUR", "EUR", "USD", "GBP", "JPY")),
        "weight_g": dice.between(20, 40_000),
        "sellable": status == "active",
        "launched_on": launched.isoformat(),
        "attributes": {"colour": colour, "material": material, "set": dice.between(1, 12)},
    }
    if status == "discontinued":
        row["discontinued_on"] = dice.day(launched, TODAY).isoformat()
    if dice.chance(40):
        row["description"] = f"Made of {material.lower()}, {colour}. Care: wipe with a dry cloth."
    return row


def gtin_check_digit(digits: str) -> str:
    """GS1: weights 3 and 1 from the right, filled up to ten."""
    weighted = sum(
        int(digit) * (3 if place % 2 == 0 else 1) for place, digit in enumerate(digits[::-1])
    )
    return str(-weighted % 10)


def all_seeds() -> dict[str, list[Row]]:
    """Return all rows by entity. Each entity has its own dice, so that one does not move others."""
    customer_rows = customers(Dice(SEED))
    category_rows = categories()
    return {
        "sales_region": list(regions()),
        "customer": customer_rows,
        "customer_address": addresses(Dice(SEED + 1), customer_rows),
        "customer_bank_account": bank_accounts(Dice(SEED + 2), customer_rows),
        "product_category": category_rows,
        "product": products(Dice(SEED + 3), category_rows),
    }


def as_lines(rows: Sequence[Row]) -> str:
    """Return a JSON array with one row per line, so that Git shows a change row by row."""
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def main() -> int:
    for entity, rows in all_seeds().items():
        (SEED_FOLDER / f"{entity}.json").write_text(as_lines(rows), encoding="utf-8", newline="\n")
        sys.stderr.write(f"{entity}: {len(rows)} rows\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
